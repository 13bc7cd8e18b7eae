"""What one call of a layer says about one parameter's per-example gradient, at one point.

Shapes: B examples, T positions of one example, I inputs, O outputs, P parameters. Convolutions: windows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpsrm.core.errors import need

UNLIKE = "a rule must give every example one row, as long as the parameter"


class Term(Protocol):
    """What a use says about a parameter: `Outer`, `Windows`, `Lookup` or `Rows`."""

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        ...


@dataclass(frozen=True)
class Outer:
    """Σ_t g_t ⊗ a_t: the weight of a linear map applied at T positions."""

    a_BTI: Tensor
    g_BTO: Tensor

    def rows(self) -> Tensor:
        """The per-example gradients, (B, O·I); the wider side is multiplied as it lies in memory, which is faster."""
        if self.g_BTO.shape[2] > self.a_BTI.shape[2]:
            return torch.bmm(self.a_BTI.transpose(1, 2), self.g_BTO).transpose(1, 2).flatten(1)
        return torch.bmm(self.g_BTO.transpose(1, 2), self.a_BTI).flatten(1)


@dataclass(frozen=True)
class Order:
    """From rows with a window's places in front of its channels to rows with the channels in front; or no change.

    `last`: how many outputs lie behind both, not in front.
    """

    window: int = 1
    channels: int = 1
    last: int = 1

    def __call__(self, row_P: Tensor) -> Tensor:
        """The row in the order of the parameter."""
        if self.last > 1:
            row_P = row_P.view(-1, self.last).T.flatten()
        if self.channels == 1:
            return row_P
        return row_P.view(-1, self.window, self.channels).transpose(1, 2).flatten()


@dataclass(frozen=True)
class Lookup:
    """The rows of an embedding that an example looked up; `g_BTO` is zero where the padding was."""

    ids_BT: Tensor
    g_BTO: Tensor
    size: int

    def rows(self) -> Tensor:
        """The per-example gradients, (B, size·O)."""
        examples, outputs = len(self.g_BTO), self.g_BTO.shape[2]
        rows = self.g_BTO.new_zeros(examples * self.size, outputs)
        base_B1 = torch.arange(examples, device=rows.device)[:, None] * self.size
        return rows.index_add_(0, (self.ids_BT + base_B1).flatten(), self.g_BTO.flatten(0, 1)).view(examples, -1)


@dataclass(frozen=True)
class Rows:
    """Any other parameter: the per-example gradients themselves, computed when they are asked for, or `known`."""

    compute: Callable[[], Tensor]
    known: bool = False

    @classmethod
    def of(cls, rows_B: Tensor) -> Rows:
        """Rows that are there already."""
        return cls(lambda: rows_B, known=True)

    def rows(self) -> Tensor:
        """The per-example gradients, (B, P)."""
        rows_B = self.compute()
        return rows_B.unsqueeze(1) if rows_B.dim() == 1 else rows_B.flatten(1)


def added(terms: Sequence[Term]) -> Tensor:
    """The rows of a shared parameter: the sum over its uses, before any norm."""
    rows_BP = terms[0].rows()
    for term in terms[1:]:
        more_BP = term.rows()
        need(more_BP.shape == rows_BP.shape, UNLIKE, rows=tuple(rows_BP.shape), others=tuple(more_BP.shape))
        rows_BP = rows_BP + more_BP
    return rows_BP


def same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())
