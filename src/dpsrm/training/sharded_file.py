"""The published file of a module that lies in shards, as safetensors: it is whole, but never in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import torch

from dpsrm.gradients import Objective
from dpsrm.gradients.module_state import parameters_of
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


def pieces(objective: Objective) -> Iterator[bytes | memoryview]:
    """The file, one tensor after the other: the head's length, the head, then all numbers, long types first."""
    module = objective.module
    state = {**parameters_of(module), **dict(module.named_buffers())}
    kept = module.state_dict().keys() & objective.known
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
