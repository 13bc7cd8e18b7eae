"""Checkpoints: everything but the key that an interrupted run needs to go on exactly as if nothing had happened.

One file in `private/`, replaced atomically: safetensors with JSON as metadata, then a tag, an HMAC by the run's key.

What must be the same when a run is resumed: its records, its module and loss, and the arithmetic of its machine. A
release made twice with one noise on different sums would reveal their difference, so "about the same" will not do.
Digests are keyed by the run's key: they are functions of private records, and stay in `private/` besides.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.events import Adjacency, Charge, Spending, event_from_json, event_to_json
from dpsrm.core.files import write_atomically
from dpsrm.core.secret import Streams
from dpsrm.core.tree import leaves
from dpsrm.data import Records, RecordSource, SparseRecords, UnitRecords
from dpsrm.data.datasets import ON_DISK
from dpsrm.gradients import LinearEngine, Objective
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.torch_state import generators_kept, seed_generators
from dpsrm.runs.folder import versions
from dpsrm.training.settings import Performance

_VERSION = 4
_TAG = 64
"""Hexadecimal digits of the tag at the end: nothing before it is parsed unless it fits."""
_ROOM = 2**22
_PER_PARAMETER = 256
"""A checkpoint may have _ROOM bytes, and as many more per parameter as no optimizer needs."""

_CHUNK = 4096
_DENSE = 2**28
"""Sparse records of up to so many numbers are known as dense ones are: a budget knows them in both forms."""
_PROBE = 8
"""Records whose losses are compared, to notice another module or loss."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a run stands after some releases.

    Args:
        facts: what must be the same when it is resumed: settings, plan, identity of data, module and machine, threads.
        released: the releases made; their number is the position of every random stream.
        ledger: lines and head of the ledger at that moment.
        walk, output: the states of the method (θ_t, θ_{t−1}, v, step rule) and of the output.
    """

    facts: dict[str, Any]
    released: Spending
    ledger: tuple[int, str]
    walk: dict[str, Any]
    output: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint, streams: Streams) -> None:
    """Replace the checkpoint at `path` by `checkpoint`."""
    write_atomically(path, pack_checkpoint(checkpoint, streams), mode=0o600)


def pack_checkpoint(checkpoint: Checkpoint, streams: Streams) -> bytes:
    """The bytes of a checkpoint, with a tag that only this run's key can make."""
    tensors: dict[str, Tensor] = {}
    body = {
        "version": _VERSION,
        "facts": flatten(checkpoint.facts, tensors),
        "adjacency": checkpoint.released.adjacency.value,
        "released": [[event_to_json(charge.event), charge.count] for charge in checkpoint.released.charges],
        "ledger": list(checkpoint.ledger),
        "walk": flatten(checkpoint.walk, tensors),
        "output": flatten(checkpoint.output, tensors),
    }
    text = json.dumps(body, sort_keys=True, allow_nan=False)
    packed = save(tensors, {"dpsrm": text})
    return packed + streams.tag([packed]).encode()


def read_checkpoint(path: Path, streams: Streams, *, parameters: int) -> Checkpoint:
    """The checkpoint at `path`, if this run (this key) wrote it; `ResumeError` otherwise.

    Guarantee: nothing in the file is executed; a file that was changed in any bit is refused, because the same noise
    on another state would be a new release without a charge.
    """
    if not path.exists():
        raise ResumeError(f"there is no checkpoint {path}: nothing was charged yet; start anew with overwrite")
    limit = _ROOM + _PER_PARAMETER * parameters
    if not path.is_file() or path.stat().st_size > limit:
        raise ResumeError(f"the checkpoint {path} must be a file of at most {limit} bytes for this module")
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise ResumeError(f"the checkpoint {path} cannot be read: {error}") from error
    return unpack_checkpoint(packed, streams, f"the checkpoint {path}")


def unpack_checkpoint(packed: bytes, streams: Streams, what: str) -> Checkpoint:
    """The checkpoint that `pack_checkpoint` made; `what` names it in errors."""
    body, tag = packed[:-_TAG], packed[-_TAG:]
    if tag != streams.tag([body]).encode():
        raise ResumeError(f"{what} was changed, or written by another run")
    try:
        header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        return _checkpoint(json.loads(header["__metadata__"]["dpsrm"]), load(body))
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError, DpsrmError) as error:
        if isinstance(error, ResumeError):
            raise
        raise ResumeError(f"{what} is malformed: {str(error)[:200]}") from error


def _checkpoint(body: dict[str, Any], tensors: dict[str, Tensor]) -> Checkpoint:
    """The checkpoint that a file's JSON and tensors state."""
    if body["version"] != _VERSION:
        raise ResumeError(f"the checkpoint has version {body['version']}; this dpsrm reads {_VERSION}")
    charges = [Charge(event_from_json(event), count) for event, count in body["released"]]
    lines, head = body["ledger"]
    return Checkpoint(
        facts=unflatten(body["facts"], tensors),
        released=Spending.of(charges, adjacency=Adjacency(body["adjacency"])),
        ledger=(lines, head),
        walk=unflatten(body["walk"], tensors),
        output=unflatten(body["output"], tensors),
    )


def bytes_of(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor's numbers, whatever their type, uncopied; a sparse one's positions are part of them."""
    if tensor.layout == torch.sparse_csr:
        return b"".join(bytes_of(part) for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class CheckpointTimer:
    """Says when a checkpoint is due: every so many releases or seconds, as the performance settings say."""

    def __init__(
        self, performance: Performance, write: Callable[[], None], agreed: Callable[[bool], bool] = bool
    ) -> None:
        """Begin to count; a checkpoint was written just now. `agreed` asks the other ranks, if they must be asked."""
        self._agreed = agreed
        self._steps = performance.checkpoint_steps
        self._seconds = performance.checkpoint_seconds
        self._write = write
        self._count = 0
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Count a release, and write a checkpoint if one is due."""
        self._count += 1
        due = self._steps > 0 and self._count >= self._steps
        due = due or (self._seconds > 0 and time.monotonic() - self._last >= self._seconds)
        if not self._agreed(due):
            return
        self._write()
        self._count, self._last = 0, time.monotonic()


def flatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The JSON form of `tree`; its tensors are copied into `tensors` under new names.

    >>> found = {}
    >>> flatten({"a": (1, torch.ones(2))}, found), list(found)
    ({'map': [['a', {'tuple': [1, {'tensor': 't0'}]}]]}, ['t0'])
    """
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"map": [[flatten(key, tensors), flatten(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return {type(tree).__name__: [flatten(value, tensors) for value in tree]}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": str(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"a state must consist of plain values and tensors; got {type(tree).__name__}")


def unflatten(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `flatten` was given; `ResumeError` if `form` is not one."""
    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if isinstance(form, dict) and len(form) == 1:
        kind, value = next(iter(form.items()))
        if kind == "tensor" and value in tensors:
            return tensors[value]
        if kind == "map" and isinstance(value, list):
            return {unflatten(key, tensors): unflatten(item, tensors) for key, item in value}
        if kind == "list" and isinstance(value, list):
            return [unflatten(item, tensors) for item in value]
        if kind == "tuple" and isinstance(value, list):
            return tuple(unflatten(item, tensors) for item in value)
        if kind == "float" and value in ("inf", "-inf", "nan"):
            return float(value)
    raise ResumeError(f"the checkpoint's state is malformed: {str(form)[:100]}")


def identity_of(objective: Objective, records: RecordSource, streams: Streams) -> dict[str, Any]:
    """The identity of a run, to be compared when it is resumed.

    Edge cases: a dataset that gives other values each time it is read (augmentation) is never the same, so its run
    cannot be resumed.
    """
    rows = records.records if isinstance(records, UnitRecords) else records
    form = [b"sparse"] if isinstance(rows, SparseRecords) else []  # sums of dense records are rounded in another way
    return {
        "records": streams.tag(chain(form, record_bytes(records))),
        "module": streams.tag(_module_bytes(objective, records, streams)),
        "machine": {**versions(), "machine": platform.machine(), "cpu": torch.backends.cpu.get_cpu_capability()},
    }


def need_same(name: str, then: Any, now: Any, remedy: str) -> None:
    """Refuse to go on with something else; only public facts are quoted."""
    if then == now:
        return
    detail = ""
    if isinstance(then, dict) and isinstance(now, dict):
        changed = sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
        detail = ": " + ", ".join(f"{key} was {then.get(key)!r}, is {now.get(key)!r}" for key in changed)[:500]
    raise ResumeError(f"the {name} must be the same as when the run began{detail}; {remedy}")


def record_bytes(records: RecordSource) -> Iterator[bytes | memoryview]:
    """Every record's numbers, a chunk at a time; of units, whose each record is before that."""
    if isinstance(records, UnitRecords):
        yield from (array.tobytes() for array in records.units.grouping)
        records = records.records
    if isinstance(records, Records):
        yield from (_described(tensor) for tensor in (records.inputs, records.targets))
        yield from (bytes_of(tensor) for tensor in (records.inputs, records.targets))
        return
    if isinstance(records, SparseRecords) and math.prod(records.matrix.shape) <= _DENSE:
        yield from record_bytes(Records(torch.from_numpy(records.matrix.toarray()), records.targets))
        return
    if isinstance(records, ON_DISK):
        yield from records.blocks()
        return
    for start in range(0, len(records), _CHUNK):
        for tensor in leaves(records.take(np.arange(start, min(start + _CHUNK, len(records))))):
            yield _described(tensor)
            yield bytes_of(tensor)


def _module_bytes(objective: Objective, records: RecordSource, streams: Streams) -> Iterator[bytes | memoryview]:
    """Shapes, frozen parameters and buffers, and the losses of a few records at a θ made up for the purpose.

    A linear layer under a loss of this package is known by shapes, type and the loss's name: neither is run.
    """
    module, layout = objective.module, objective.layout
    yield repr((layout.names, layout.shapes, module.training)).encode()
    named = [name for name, _ in [*module.named_parameters(), *module.named_buffers()] if name not in layout.names]
    for name, tensor in objective.values(named):
        yield f"{name} {tensor.dtype}".encode()
        yield bytes_of(tensor)
    if LinearEngine.applies(objective):
        yield repr((nn.Linear, next(module.parameters()).dtype, getattr(objective.loss, "__name__", None))).encode()
        return
    like_P = objective.theta()
    probe_P = torch.from_numpy(0.1 * streams.initialisation.standard_normal(layout.size)).to(like_P)
    batch = on_device(records.take(np.arange(min(_PROBE, len(records)))), like_P.device)
    with generators_kept(), torch.no_grad():
        seed_generators(0)
        yield bytes_of(objective.losses(probe_P, batch))


def _described(tensor: Tensor) -> bytes:
    """Type and shape."""
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode()
