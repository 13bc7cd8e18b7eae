"""Neighbouring datasets: one record exchanged for a random, extreme, non-finite, duplicated or opposed one.

Shapes: B examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dpsrm.core.errors import DpsrmError
from dpsrm.core.tree import Ragged, leaves, mapped, refilled
from dpsrm.data import DatasetRecords, Records, RecordSource, SparseRecords
from dpsrm.gradients import Batch, Objective

Indices = npt.NDArray[np.integer[Any]]
Change = Callable[[Tensor], Tensor]
_LOOKED_AT = 32
"""Records among which the most opposed one is looked for."""


@dataclass(frozen=True)
class Neighbour:
    """The records with another one at the place `at`; `name` says which."""

    name: str
    records: RecordSource
    at: int


class Patched:
    """Records with one row exchanged as it is handed out, whatever it holds: nothing looks at it before the engine."""

    def __init__(self, records: RecordSource, at: int, row: Batch) -> None:
        """Put `row`, a batch of one, in the place `at`."""
        self._records, self._at, self._row = records, at, row

    def __len__(self) -> int:
        """As many as before."""
        return len(self._records)

    def take(self, indices: Indices) -> Any:
        """The batch, with the row exchanged wherever it was drawn."""
        batch = self._records.take(indices)
        drawn = torch.from_numpy(np.asarray(indices) == self._at)
        rows = iter(leaves(self._row))
        return mapped(lambda tensor: _exchanged(tensor, drawn, next(rows)), batch)


class Swapped(Dataset[Any]):
    """A dataset with one record read from another place."""

    def __init__(self, dataset: Dataset[Any], at: int, other: int) -> None:
        """Read `other` where `at` is asked for."""
        self._dataset, self._at, self._other = dataset, at, other

    def __len__(self) -> int:
        """As many as before."""
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        """The record, or the other one."""
        return self._dataset[self._other if index == self._at else index]


def _exchanged(tensor: Tensor, drawn: Tensor, row: Tensor) -> Tensor:
    """The tensor with `row` where it was drawn."""
    changed = tensor.clone()
    changed[drawn] = row.to(tensor.dtype)
    return changed


FLOATS: dict[str, Change] = {
    "zeros": torch.zeros_like,
    "a thousand times as large": lambda x: 1e3 * x,
    "opposite, a million times": lambda x: -1e6 * x - 1e3,
    "near the largest float": lambda x: torch.full_like(x, torch.finfo(x.dtype).max / 8),
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "infinite": lambda x: torch.full_like(x, torch.inf),
}
"""What becomes of the floating numbers of a record."""


def neighbours(records: RecordSource, at: int, *, others: Indices, objective: Objective) -> Iterator[Neighbour]:
    """Neighbours of `records` in the place `at`.

    Args:
        others: places of other records, drawn together with it; the first is duplicated.
        objective: tells which of the others pulls most against the record.
    """
    for name, other in (("a duplicate of another", int(others[0])), ("another record", int(others[-1]))):
        yield Neighbour(name, _with_copy(records, at, other), at)
    batch = records.take(np.array([at]))
    if isinstance(records, (DatasetRecords, SparseRecords)) or isinstance(batch, Ragged):
        return
    for name, change in FLOATS.items():
        yield Neighbour(name, _with_row(records, at, _inputs(batch, change)), at)
    for name, row in _targets(batch, records.take(others)):
        yield Neighbour(name, _with_row(records, at, row), at)
    opposed = _opposed(records, at, others[:_LOOKED_AT], objective)
    if opposed is not None:
        yield Neighbour("the most opposed record, scaled", _with_row(records, at, opposed), at)


def _with_copy(records: RecordSource, at: int, other: int) -> RecordSource:
    """The records with a copy of the one at `other` in the place `at`."""
    if isinstance(records, DatasetRecords):
        return DatasetRecords(Swapped(records.dataset, at, other), records.collate)
    if isinstance(records, SparseRecords):
        order = np.arange(len(records))
        order[at] = other
        return SparseRecords(scipy.sparse.csr_array(records.matrix[order]), records.targets[torch.from_numpy(order)])
    return _with_row(records, at, records.take(np.array([other])))


def _with_row(records: RecordSource, at: int, row: Batch) -> RecordSource:
    """The records with `row` in the place `at`, in memory if they are there and the row may be."""
    if not isinstance(records, Records):
        return Patched(records, at, row)
    drawn = torch.arange(len(records)) == at
    inputs, targets = (
        _exchanged(old, drawn, new) for old, new in zip((records.inputs, records.targets), row, strict=True)
    )
    try:
        return Records(inputs, targets)
    except DpsrmError:  # a number that is not finite: no file could bring it, so it goes straight to the engine
        return Patched(records, at, row)


def _inputs(row: Batch, change: Change) -> Batch:
    """The row with `change` of its floating inputs; the targets of a pair stay."""
    tensors = leaves(row)
    kept = 1 if isinstance(row, (tuple, list)) and len(tensors) == 2 else 0
    changed = [change(x) if x.is_floating_point() else x for x in tensors[: len(tensors) - kept]]
    return refilled(row, iter([*changed, *tensors[len(tensors) - kept :]]))


def _targets(row: Batch, others: Batch) -> Iterator[tuple[str, Batch]]:
    """The row with another target: another class that occurs, or a number far away."""
    *inputs, last = leaves(row)
    if last.is_floating_point() and last.dim() <= 2:
        far = 1e4 - last
        yield "a target far away", refilled(row, iter([*inputs, far]))
        yield (
            "and inputs as large",
            refilled(row, iter([*(1e4 * x if x.is_floating_point() else x for x in inputs), far])),
        )
        return
    known = leaves(others)[-1]
    different = known[(known.reshape(len(known), -1) != last.reshape(1, -1)).any(1)]
    if len(different):
        yield "another label", refilled(row, iter([*inputs, different[:1]]))
        large = [1e3 * x if x.is_floating_point() else x for x in inputs]
        yield "another label, inputs a thousand times", refilled(row, iter([*large, different[:1]]))


def _opposed(records: RecordSource, at: int, others: Indices, objective: Objective) -> Batch | None:
    """Of some records the one whose gradient points most against that of `at`, a thousand times as large."""
    theta_P = objective.layout.read(objective.module)
    own_P = _gradient(objective, theta_P, records.take(np.array([at])))
    best, found = 0.0, None
    for other in others:
        row = records.take(np.array([other]))
        g_P = _gradient(objective, theta_P, row)
        if own_P is None or g_P is None:
            return None
        cosine = float(g_P @ own_P / (g_P.norm() * own_P.norm()).clamp_min(1e-300))
        if cosine < best:
            best, found = cosine, row
    return None if found is None else _inputs(found, lambda x: 1e3 * x)


def _gradient(objective: Objective, theta_P: Tensor, row: Batch) -> Tensor | None:
    """The gradient of a batch of one; None where it cannot be had."""
    leaf_P = theta_P.detach().clone().requires_grad_()
    try:
        loss = objective.alone(leaf_P, mapped(lambda x: x[0], row))
        return torch.autograd.grad(loss, leaf_P)[0].double()
    except (RuntimeError, TypeError, DpsrmError):
        return None
