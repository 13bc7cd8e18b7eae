"""Clipped losses at several points, summed over the records: what a private selection looks at.

Shapes: B examples, J candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpsrm.core.secret import ClippedScores
from dpsrm.gradients.batch import Batch, dense, examples, groups, rows
from dpsrm.gradients.checked import compare_losses
from dpsrm.gradients.objective import Objective, Way

_ROWS = 4096


@torch.no_grad()
def clipped_losses(
    objective: Objective,
    points: Sequence[Tensor],
    batch: Batch,
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
    for group in groups(dense(batch)):
        for start in range(0, examples(group), _ROWS):
            sums_J += _scores(objective, points, rows(group, slice(start, start + _ROWS)), clip)
    return ClippedScores(secret=tuple(sums_J.tolist()), bound=clip, rows=examples(batch))


def _scores(objective: Objective, points: Sequence[Tensor], piece: Batch, clip: float) -> Tensor:
    """One sum per candidate over a few examples of one shape."""
    state, sums = torch.get_rng_state(), []
    for point_P in points:
        torch.set_rng_state(state)
        losses_B = objective.losses(point_P, piece).double()
        if objective.way is Way.BATCH:
            compare_losses(objective, point_P, piece, losses_B)
        worst = clip if clip < float("inf") else 0.0
        sums.append(torch.nan_to_num(losses_B, nan=worst, posinf=clip).clamp(0.0, clip).sum().cpu())
    return torch.stack(sums)
