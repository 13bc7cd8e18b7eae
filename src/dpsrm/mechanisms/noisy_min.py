"""Report-noisy-min: which of several scores is least, told with one-sided noise on the right side.

Shapes: J candidates.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from dpsrm.core.events import Adjacency
from dpsrm.core.secret import ClippedScores


class Selection(str, Enum):
    """The noise of a selection: exponential (permute-and-flip) or Gumbel (the exponential mechanism)."""

    EXPONENTIAL = "exponential"
    GUMBEL = "gumbel"


def selection_epsilon(rho: float, selection: Selection) -> float:
    """The ε for which a selection is ρ-zCDP.

    Exponential noise: ε-DP, hence ε²/2-zCDP (Bun & Steinke 2016, Prop. 1.4). Gumbel noise: the exponential mechanism,
    whose log-ratios lie in an interval of length ε ("bounded range"), hence ε²/8-zCDP (Cesar & Rogers 2021):
    half the noise for the same price.

    >>> selection_epsilon(0.02, Selection.EXPONENTIAL), selection_epsilon(0.02, Selection.GUMBEL)
    (0.2, 0.4)
    """
    if selection is Selection.EXPONENTIAL:
        return math.sqrt(2 * rho)
    if selection is Selection.GUMBEL:
        return math.sqrt(8 * rho)
    raise AssertionError(selection)


def noisy_min(
    scores: ClippedScores,
    *,
    epsilon: float,
    selection: Selection,
    adjacency: Adjacency,
    stream: np.random.Generator,
) -> int:
    """argmin_j (score_j − Z_j), Z_j of scale λ = spread/ε: ε-differentially private.

    A record moves score j by d_j, and max_j d_j − min_j d_j ≤ spread: 2·clip if it is replaced, clip if it is added or
    removed (losses lie in [0, clip], so all d_j then have one sign). Fix the noise of the others: j wins if Z_j exceeds
    a threshold, which moves by at most spread, and P[Z > x + spread] ≥ e^{−ε}·P[Z > x] for the exponential's (and the
    Gumbel's) right tail.

    Args:
        scores: the J secret sums.
        epsilon: ε; see `selection_epsilon` for its zCDP price.
        selection: which noise.
        adjacency: what is protected.
        stream: the secret noise stream.

    Guarantee: ε-DP; with Gumbel noise also ε-bounded-range.

    Edge cases: it must be *minus* the noise. argmin(score + Z) looks at the noise's other tail, which for the
    exponential ends at 0: with J candidates its log-ratio reaches (J−1)·ε (with two it happens to be right).

    Source: Dwork & Roth 2014, §3.3; McKenna & Sheldon 2020; Ding et al. 2021 (exponential = permute-and-flip).
    Departs from the paper: Lee & Kifer's published code (DP-AGD) adds the noise.
    """
    scale = scores.spread(adjacency) / epsilon
    if selection is Selection.EXPONENTIAL:
        noise_J = stream.standard_exponential(len(scores.secret))
    elif selection is Selection.GUMBEL:
        noise_J = stream.gumbel(size=len(scores.secret))
    else:
        raise AssertionError(selection)
    return int(np.argmin(np.asarray(scores.secret) - scale * noise_J))
