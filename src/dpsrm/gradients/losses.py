"""Clipped losses at several points, summed over the records: what a private selection looks at.

Shapes: B examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedScores
from dpsrm.core.tree import Ragged
from dpsrm.gradients.batch import Batch, Kind, copies, dense, example, examples, groups, kind, padded, rows
from dpsrm.gradients.checked import compare_losses
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.places import PIECE, Draws, placeless, probes
from dpsrm.gradients.query import MARGIN
from dpsrm.gradients.torch_state import rng_states, set_rng_states

_ROWS = 4096
_MOST = MARGIN / 4 * 2**53


@torch.no_grad()
def clipped_losses(
    objective: Objective,
    points: Sequence[Tensor],
    batch: Batch,
    *,
    clip: float,
    offsets: Sequence[float],
    steady: bool = True,
) -> ClippedScores:
    """offset + Σ_i clamp(f_i(point), 0, clip) for each point.

    Args:
        steady: as in `GhostEngine`; unless steady, examples are run 64 at a time, the last ones filled up to 64, or
            one at a time if a loss depends on the place among them.

    Guarantee: every example adds between 0 and `clip` to each sum, whatever it is, and its loss depends on no other
    (see `Objective`). Losses are added exactly and the sum is rounded once, to within u·(B·clip + |offset|), u = 2⁻⁵³;
    they are clamped at (1 − 2⁻²⁰)·clip, which pays for that in two scores of two datasets.
    Edge cases: a NaN loss counts as `clip` (as 0 if that is infinite); no examples give the offsets. Layers with
    randomness draw the same at every point, and unless `steady` for every example. More than 2³¹ of examples and
    offsets, in clips, are refused.
    """
    largest = max((abs(offset) for offset in offsets), default=0.0)
    need(examples(batch) + largest / clip <= _MOST, "scores cannot be summed safely", clip=clip, offset=largest)
    steady = steady and not isinstance(batch, Ragged)
    state, sums = rng_states(), []
    for point_P, offset in zip(points, offsets, strict=True):
        set_rng_states(state)
        pieces = _pieces(objective, point_P, dense(batch), steady=steady)
        sums.append(math.fsum([offset, *(loss for piece_B in pieces for loss in _clamped(piece_B, clip))]))
    return ClippedScores(secret=tuple(sums), bound=clip, rows=examples(batch))


def _pieces(objective: Objective, point_P: Tensor, batch: Batch, *, steady: bool) -> Iterator[Tensor]:
    """The losses of a few examples of one shape at a time."""
    draws = Draws(steady=steady)
    for group in groups(batch):
        size = _ROWS if steady or not examples(group) else _piece(objective, point_P, group)
        for start in range(0, examples(group), size):
            draws.rewind()
            piece = rows(group, slice(start, start + size))
            real = examples(piece)
            losses_B = objective.losses(point_P, piece if steady else padded(piece, size), steady=steady)[:real]
            if objective.way is Way.BATCH:
                compare_losses(objective, point_P, piece, losses_B)
            yield losses_B


_PIECES: WeakKeyDictionary[Objective, dict[Kind, int]] = WeakKeyDictionary()


def _piece(objective: Objective, point_P: Tensor, group: Batch) -> int:
    """How many examples of this kind make a piece, if places may shift; tried out once, on public numbers."""
    known, alike = _PIECES.setdefault(objective, {}), kind(group)
    if alike not in known:
        tried = probes([point_P], example(group, 0))
        losses = (objective.losses(points[0], copies(one, PIECE), steady=False) for points, one in tried)
        known[alike] = PIECE if all(placeless([losses_B]) for losses_B in losses) else 1
    return known[alike]


def _clamped(losses_B: Tensor, clip: float) -> list[float]:
    """Each loss between 0 and a little less than its clip."""
    worst = clip if clip < math.inf else 0.0
    numbers_B = torch.nan_to_num(losses_B.double(), nan=worst, posinf=clip)
    found: list[float] = numbers_B.clamp(0.0, clip * (1 - MARGIN)).tolist()
    return found
