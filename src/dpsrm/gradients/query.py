"""The one question every method asks of the private records, and the clip that bounds each record's answer.

Shapes: B examples, P trainable parameters, K points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from dpsrm.core.errors import BoundExceeded, need
from dpsrm.core.secret import ClippedSum
from dpsrm.gradients.batch import Batch


class Excess(str, Enum):
    """What to do with an example whose part exceeds its clip: scale it down, or stop (theory mode)."""

    CLIP = "clip"
    RAISE = "raise"


class ClipRule(str, Enum):
    """How a part is brought within its clip: flat, min(1, clip/‖·‖); or automatic, clip/(‖·‖ + 0.01) (AUTO-S).

    Source: Bu, Wang, Zha & Karypis 2023, "Automatic clipping" (their R = clip, γ = 0.01).
    """

    FLAT = "flat"
    AUTO = "auto"

    __hash__ = str.__hash__  # equal texts are equal members; Enum's own hash is slow, and parts are looked up by it


_SMALLEST = 1e-100
"""Float64 can square it."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """weight · clip(Σ_k coefficients[k] · ∇f_i(point k), clip) for each example i.

    `clip` may be infinite: the sum then has no bound, and only an unprotected release can be made of it.
    Under either `rule` no example's part is longer than `clip`.
    """

    coefficients: tuple[float, ...]
    clip: float
    weight: float = 1.0
    name: str = "gradient"
    rule: ClipRule = ClipRule.FLAT

    def __post_init__(self) -> None:
        """Refuse clips and weights that bound nothing."""
        need(self.clip > 0, "a clip must be positive", clip=self.clip)
        need(self.clip >= _SMALLEST, "squares of norms near so small a clip would underflow", clip=self.clip)
        need(0 <= self.weight < math.inf, "a weight must be finite and not negative", weight=self.weight)
        need(
            all(map(math.isfinite, self.coefficients)),
            "coefficients must be finite",
            coefficients=self.coefficients,
        )
        flat = self.rule is ClipRule.FLAT
        need(flat or self.clip < math.inf, "automatic clipping needs a finite clip", clip=self.clip)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Several points (flat parameter vectors) and several parts; example i contributes the sum of its parts.

    Guarantee: every contribution has norm at most `bound` = Σ weight·clip.

    >>> theta = torch.zeros(3)
    >>> parts = Part(coefficients=(1, -1), clip=0.5, weight=0.9), Part(coefficients=(1, 0), clip=2.0, weight=0.1)
    >>> round(Query(points=(theta, theta), parts=parts).bound, 12)
    0.65
    """

    points: tuple[Tensor, ...]
    parts: tuple[Part, ...]
    excess: Excess = Excess.CLIP

    def __post_init__(self) -> None:
        """Refuse parts that speak of other points."""
        count = len(self.points)
        for part in self.parts:
            if len(part.coefficients) != count:
                rule = "a part has one coefficient per point"
                need(False, rule, coefficients=part.coefficients, points=count)

    @property
    def bound(self) -> float:
        """The largest norm one example can contribute; a part of weight 0 contributes nothing."""
        return sum(part.weight * part.clip for part in self.parts if part.weight > 0)


class Engine(Protocol):
    """Computes the clipped sum of a query over one batch."""

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The float64 sum over the batch; an empty batch gives zeros."""


MARGIN = 2.0**-20
"""What is clipped is clipped to (1 − margin) of its clip: the rest pays for rounding in float64 sums over the batch.

docs/decisions/rounding.md proves that it is enough for every engine. It is a constant, because a margin that followed
the size of the drawn batch would tell that size.
"""

_ADDITIONS = MARGIN / 4 * 2**53
MOST_EXAMPLES = 2**20
"""No sum has more: where all places may shift, the margin must cover the rounding of the whole sum."""


def need_few(examples: int, additions: int) -> None:
    """Refuse a batch so large that float64 could not add it up, in so many additions, within the margin."""
    few = examples <= MOST_EXAMPLES and examples * additions <= _ADDITIONS
    need(few, "a batch of this size cannot be summed safely", examples=examples, remedy="take smaller batches")


def need_safe(total: ClippedSum[Tensor]) -> ClippedSum[Tensor]:
    """A sum of sums over shares of a batch, if together they are not too many: each was asked by itself only."""
    if total.additions:
        need_few(total.rows, total.additions)
    return total


def clip_factors(norm_B: Tensor, clip: float, margin: float = MARGIN) -> Tensor:
    """min(1, (1 − margin)·clip/‖·‖) per example; 1 where the norm is 0.

    >>> clip_factors(torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64), 2.0)
    tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    within = clip * (1 - margin)
    return torch.where(norm_B > within, within / norm_B, torch.ones_like(norm_B))


STABILITY = 0.01
"""AUTO-S's γ: gradients much shorter than this keep their relative lengths."""


def part_factors(norm_B: Tensor, part: Part, margin: float = MARGIN) -> Tensor:
    """What each example's part is multiplied by, under the part's rule.

    >>> part = Part(coefficients=(1.0,), clip=2.0, rule=ClipRule.AUTO)
    >>> part_factors(torch.tensor([0.0, 0.99, 3.99], dtype=torch.float64), part)
    tensor([199.9998,   2.0000,   0.5000], dtype=torch.float64)
    """
    if part.rule is ClipRule.FLAT:
        return clip_factors(norm_B, part.clip, margin)
    if part.rule is ClipRule.AUTO:
        return part.clip * (1 - margin) / (norm_B + STABILITY)
    raise AssertionError(part.rule)


def refuse_excess(norm_B: Tensor, part: Part) -> None:
    """Raise `BoundExceeded` if an example exceeds the bound the user declared for all of them (theory mode).

    A norm within 1e-6 of the bound passes: it is rounding, and it is clipped to the bound all the same.
    """
    if bool((norm_B <= part.clip * (1 + 1e-6)).all()):
        return
    worst = float(torch.nan_to_num(norm_B, nan=math.inf).max())
    raise BoundExceeded(
        f"theory mode assumes that no example's {part.name} exceeds its declared bound; got norm={worst:.6g}, "
        f"bound={part.clip:.6g}; nothing was released; declare larger constants, or say excess='clip' to clip. "
        "(That it stopped says something about a record: do not publish it.)"
    )
