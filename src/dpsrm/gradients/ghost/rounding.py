"""How far rounding can go: bounds that hold whatever the order in which a library adds.

With u the unit of rounding, a sum of k products computed in any order, fused or not, is off by at most γ_k·Σ|x||y| with
γ_k = k·u/(1 − k·u) (Higham, Accuracy and Stability, §3.1), and by k times the smallest normal number where products
underflow. docs/decisions/rounding.md says how these add up to the engine's margin.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from dpsrm.core.errors import need
from dpsrm.gradients.query import MARGIN, MOST_EXAMPLES

CHUNKED = 2.0**-9
"""What is clipped gives up so much more, 0.2 %, where a few examples at a time are added in float32."""

DOUBT = 2.0**-9
"""A squared norm that may be off by more than this share of itself is taken again in float64 before it decides."""

MOST_PIECES = 2.0**12
"""How long an example's weighted pieces may be together, in clips: what cancels more is scaled down further."""

SHIFTING = 2.0**-13
"""What is clipped gives up this instead of `MARGIN`, 0.012 %, where a neighbouring dataset may shift all places."""

FEW_PIECES = 2.0**6
"""`MOST_PIECES` where a neighbouring dataset may shift all places."""

WIDE = 1024
"""How many products of an inner product are added in the gradients' own type; the pieces are added in float64."""

_SMALL, _SHORT = 2**14, 128
_ALLOWANCE = 8
"""How many times longer than their sum an example's pieces may be together before it is added in float64."""


@lru_cache(maxsize=256)
def gamma(terms: int, dtype: torch.dtype = torch.float64) -> float:
    """γ_k for numbers of this type: infinite where k·u is not small.

    >>> gamma(2, torch.float32) == 2 * 2**-24 / (1 - 2 * 2**-24)
    True
    """
    size = terms * torch.finfo(dtype).eps / 2
    return size / (1 - size) if size < 0.5 else math.inf


@lru_cache(maxsize=256)
def tiny(dtype: torch.dtype) -> float:
    """What one product can lose by underflow, subnormal numbers flushed to zero or not."""
    return float(torch.finfo(dtype).tiny)


@lru_cache(maxsize=256)
def chunk(positions: int, size: int, dtype: torch.dtype) -> int:
    """How many examples may be added together in the gradients' own type; 0: none, all are added in float64.

    c examples with `positions` products each are off by c·γ·(their longest spread); this is kept to half of `CHUNKED`
    for spreads of up to `_ALLOWANCE` clips. Small matrices (`size`) and short sums are no faster than in float64.
    """
    if dtype is torch.float64 or size < _SMALL:
        return 0
    examples = int(math.sqrt(CHUNKED / 2 / _ALLOWANCE / (positions * torch.finfo(dtype).eps / 2)))
    while examples and most_spread(positions, examples, dtype) < _ALLOWANCE:
        examples -= 1
    return examples if examples * positions >= _SHORT else 0


@lru_cache(maxsize=256)
def at_once(positions: int, *, steady: bool = True) -> int:
    """How many examples may be added in one float64 product: the error stays below an eighth of the margin.

    If places are steady, one product differs between neighbours, and its error counts; otherwise that of all products.

    >>> at_once(1), at_once(64), at_once(1, steady=False), at_once(64, steady=False)
    (508, 63, 2039, 31)
    """
    positions = max(1, positions)
    most = MARGIN / 8 / MOST_PIECES if steady else SHIFTING / 8 / FEW_PIECES / MOST_EXAMPLES
    examples = int(math.sqrt(most * 2**53 / positions) if steady else most * 2**53 / positions)
    while examples and (examples if steady else 1) * gamma(examples * positions + 8) > most:
        examples -= 1
    need(examples > 0, "a layer is applied at too many positions to be added safely", positions=positions)
    return examples


@lru_cache(maxsize=256)
def most_spread(positions: int, examples: int, dtype: torch.dtype) -> float:
    """How long an example's weighted pieces may be together, in clips, so that adding them keeps within the margin."""
    return CHUNKED / 2 / (examples * gamma(examples * positions + 8, dtype))
