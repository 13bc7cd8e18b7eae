"""What must be the same when a run is resumed: its records, its module and loss, and the arithmetic of its machine.

A release made twice with one noise on different sums would reveal their difference, so "about the same" will not do.
Digests are keyed by the run's key: they are functions of private records, and stay in `private/` besides.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsrm.core.errors import ResumeError
from dpsrm.core.randomness import Streams
from dpsrm.core.tree import leaves
from dpsrm.data import Records, RecordSource, SparseRecords, UnitRecords
from dpsrm.data.datasets import ON_DISK
from dpsrm.gradients import LinearEngine, Objective
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.torch_state import generators_kept, seed_generators
from dpsrm.runs.folder import versions
from dpsrm.training.checkpoint import bytes_of

_CHUNK = 4096
_DENSE = 2**28
"""Sparse records of up to so many numbers are known as dense ones are: a budget knows them in both forms."""
_PROBE = 8
"""Records whose losses are compared, to notice another module or loss."""


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
