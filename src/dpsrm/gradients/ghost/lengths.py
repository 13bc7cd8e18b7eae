"""From what blocks know about norms to clip factors that keep every part within its clip, rounding included.

Shapes: B examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsrm.gradients.ghost.blocks import Block, Measure
from dpsrm.gradients.ghost.mixture import Combination, Mixture
from dpsrm.gradients.ghost.rounding import CHUNKED, DOUBT, FEW_PIECES, MOST_PIECES, SHIFTING
from dpsrm.gradients.query import MARGIN, ClipRule, Excess, Part, part_factors, refuse_excess
from dpsrm.gradients.rows import Tally


@dataclass(frozen=True)
class Length:
    """A part's clip factor for each example, and how long its weighted pieces are together, in clips."""

    factor_B: Tensor
    pieces_B: Tensor


def measure_parts(mixture: Mixture, found: Sequence[Block], losses_B: Tensor) -> list[Measure]:
    """What is known about the norm of every part and example."""
    zero_B = torch.zeros_like(losses_B, dtype=torch.float64)
    measures = [Measure(zero_B, zero_B, zero_B) for _ in mixture.parts]
    for block in found:
        for index, mixed in enumerate(mixture.parts):
            if mixed:
                measures[index] = measures[index].plus(block.measure(mixed))
        block.rest()
    return measures


def lengths(
    tally: Tally, mixture: Mixture, found: list[Block], measures: Sequence[Measure], *, losses_B: Tensor
) -> list[Length]:
    """The clip factor of every part and example; zero for examples that are not finite, or only fill the piece up.

    Args:
        losses_B: of the examples that count; they come first.
    """
    finite_B = torch.stack([torch.isfinite(m.square_B + m.doubt_B + m.spread_B) for m in measures]).all(dim=0)
    real = len(losses_B)
    tally.count(losses_B, finite_B[:real])
    if not bool(finite_B.all()):
        for block in found:
            block.silence(finite_B)
    counts_B = finite_B & (torch.arange(len(finite_B), device=finite_B.device) < real)
    done, margin = [], _margin(found, steady=tally.steady)
    for index, (part, measure) in enumerate(zip(tally.query.parts, measures, strict=True)):
        if part.weight > 0 and tally.query.excess is Excess.RAISE:
            refuse_excess(torch.where(finite_B, measure.square_B.sqrt(), torch.nan), part)
        upper_B = _upper(measure, mixture.parts[index], found, part, steady=tally.steady)
        tally.clipped[index] += int((counts_B & (upper_B > part.clip)).sum()) if part.weight > 0 else 0
        done.append(_length(upper_B, measure, part, counts_B, margin=margin, steady=tally.steady))
    return done


def _margin(found: Sequence[Block], *, steady: bool) -> float:
    """The share of a clip that is given up; it depends on the examples' shape alone."""
    if not steady:
        return SHIFTING
    return MARGIN + (CHUNKED if any(block.most_spread < math.inf for block in found) else 0)


def _length(upper_B: Tensor, measure: Measure, part: Part, counts_B: Tensor, *, margin: float, steady: bool) -> Length:
    """The factor that keeps a part within its clip, and its pieces within what float64 adds without harm."""
    spread_B = measure.spread_B.sqrt()
    factor_B = torch.where(counts_B, part_factors(upper_B, part, margin), 0)
    if part.clip == math.inf:
        return Length(factor_B, torch.zeros_like(spread_B))
    pieces = MOST_PIECES if steady else FEW_PIECES
    factor_B = torch.minimum(factor_B, torch.nan_to_num(pieces * part.clip / spread_B, nan=math.inf))
    return Length(factor_B, torch.where(counts_B, factor_B * spread_B / part.clip, 0))


def _upper(measure: Measure, mixed: Combination, found: list[Block], part: Part, *, steady: bool) -> Tensor:
    """A norm that no example's part exceeds; where rounding makes it doubtful, taken again from float64 products.

    A relative 2^-24 stands for the roundings of this function and of float64 sums over blocks. Unless places are
    steady, all examples are taken again, so that the shape of the products does not depend on how many are doubtful.
    """
    square_B, doubt_B = measure.square_B, measure.doubt_B
    acts_B = ((square_B + doubt_B).sqrt() > part.clip * (1 - 2 * CHUNKED)) | (part.rule is ClipRule.AUTO)
    redo_B = acts_B & (doubt_B > DOUBT * square_B) & torch.isfinite(doubt_B)
    if bool(redo_B.any()):
        rows = (redo_B if steady else torch.ones_like(redo_B)).nonzero().flatten()
        again_B = square_B.index_put((rows,), torch.stack([b.precise(mixed, rows) for b in found]).sum(0))
        square_B = torch.where(redo_B, again_B, square_B)
        doubt_B = torch.where(redo_B, 2.0**-36 * measure.spread_B, doubt_B)
    return (square_B * (1 + 2.0**-24) + doubt_B).sqrt()
