"""Numbers to predict: a target whose range is public, so that it can be scaled without looking at the records."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import need
from dpsrm.data.tables import Cell, read_cell, shown


@dataclass(frozen=True)
class TargetRange:
    """A public range [low, high], which is mapped to [-1, 1]; what lies outside is clamped.

    Edge cases: a target that is missing, text or infinite raises `InputError` with its row (counted from 1).

    >>> TargetRange(0, 100).scaled(["0", "75", "250"]).tolist()
    [-1.0, 0.5, 1.0]
    >>> TargetRange(0, 100).unscaled(np.array([0.5, 7.0])).tolist()
    [75.0, 100.0]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        finite = all(type(end) in (int, float) and math.isfinite(end) for end in (self.low, self.high))
        need(
            finite and self.low < self.high and math.isfinite(self.high - self.low),
            "a target's range is two finite numbers, the lower one first",
            range=(self.low, self.high),
            remedy="for instance --target-range 0,100",
        )
        for name in ("low", "high"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def scaled(self, cells: Iterable[Cell]) -> npt.NDArray[np.float32]:
        """Each target clamped to the range and mapped to [-1, 1]."""
        values = np.array([_number(cell, row) for row, cell in enumerate(cells, 1)], dtype=np.float64)
        inside = np.clip(values, self.low, self.high)
        return (2 * ((inside - self.low) / (self.high - self.low)) - 1).astype(np.float32)

    def unscaled(self, outputs: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """A model's outputs as numbers of the range: clamped to [-1, 1], then mapped back."""
        inside = np.clip(outputs.astype(np.float64), -1, 1)
        return self.low + (inside + 1) / 2 * (self.high - self.low)

    def describe(self) -> dict[str, object]:
        """What is known about the target, for the run folder."""
        return {
            "task": "regression",
            "target_range": [self.low, self.high],
            "target_range_from": "declared public; targets outside of it are clamped",
        }


def _number(cell: Cell, row: int) -> float:
    """A target as a finite number."""
    value = read_cell(cell)
    good = isinstance(value, float) and math.isfinite(value)
    if not good:
        need(
            False,
            "every record must have a finite number as its target, to predict numbers",
            row=row,
            target=shown(cell),
            remedy="remove the record or correct the cell; to predict classes leave --task and --target-range out",
        )
    assert isinstance(value, float)
    return value
