"""Clipped losses at several points, summed over the records: what a private selection looks at.

Shapes: B examples, J candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.core.secret import ClippedScores
from dpsrm.gradients.checked import compare_losses
from dpsrm.gradients.objective import Objective, Way

_ROWS = 4096


@torch.no_grad()
def clipped_losses(
    objective: Objective,
    points: Sequence[Tensor],
    inputs: Tensor,
    targets: Tensor,
    *,
    clip: float,
    offsets: Sequence[float],
) -> ClippedScores:
    """offset + Σ_i clamp(f_i(point), 0, clip) for each point, in float64, 4096 examples at a time.

    Guarantee: every example adds between 0 and `clip` to each sum, whatever it is, and its loss depends on no other
    (see `Objective`).
    Edge cases: a NaN loss counts as `clip` (as 0 if that is infinite); no examples give the offsets. Layers with
    randomness draw the same at every point.
    """
    sums_J = torch.tensor(offsets, dtype=torch.float64)
    for start in range(0, len(inputs), _ROWS):
        cut = slice(start, start + _ROWS)
        state = torch.get_rng_state()
        for j, point_P in enumerate(points):
            torch.set_rng_state(state)
            losses_B = objective.losses(point_P, inputs[cut], targets[cut]).double()
            if objective.way is Way.BATCH:
                compare_losses(objective, point_P, (inputs[cut], targets[cut]), losses_B)
            worst = clip if clip < float("inf") else 0.0
            sums_J[j] += torch.nan_to_num(losses_B, nan=worst, posinf=clip).clamp(0.0, clip).sum().cpu()
    return ClippedScores(secret=tuple(sums_J.tolist()), bound=clip, rows=len(inputs))
