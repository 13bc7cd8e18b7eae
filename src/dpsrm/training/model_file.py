"""The published model: a module's state as safetensors, whole or not at all; a sharded one is never whole in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_model as save_whole

from dpsrm.core.files import write_atomically
from dpsrm.gradients import Objective
from dpsrm.gradients.shards import parameters_of
from dpsrm.training.checkpoint import bytes_of

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls them."""


def save_model(objective: Objective, path: Path) -> None:
    """Write the state of the objective's module; parameters it shares are stored once."""
    if objective.shards is not None:
        write_atomically(path, _pieces(objective))
        return
    beside = path.with_name(path.name + ".part")
    save_whole(objective.module, str(beside))
    write_atomically(path, beside.read_bytes())
    beside.unlink()


def _pieces(objective: Objective) -> Iterator[bytes | memoryview]:
    """The file, one tensor after the other: the head's length, the head, then all numbers, long types first."""
    module = objective.module
    state = {**parameters_of(module), **dict(module.named_buffers())}
    kept = module.state_dict().keys()
    names = sorted((name for name in state if name in kept), key=lambda name: (-state[name].element_size(), name))
    head, end = {}, 0
    for name in names:
        begin, end = end, end + state[name].numel() * state[name].element_size()
        kind = _TYPES[state[name].dtype]
        head[name] = {"dtype": kind, "shape": list(state[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in objective.values(names):
        yield bytes_of(tensor)
