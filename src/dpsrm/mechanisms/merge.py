"""The total of sums over shares of one batch: in one process, or with a part of the coordinates on each rank.

Shapes: P coordinates; S shares of this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dpsrm.core.errors import RankFailed
from dpsrm.core.secret import LARGE, ClippedSum, Coordinates, Diagnostics
from dpsrm.mechanisms.wire import Wire

Summed = Callable[[], Sequence[ClippedSum[Tensor]]]
"""Sums over this process's shares of a batch, one by one."""

_WIDTH = 5
"""Numbers that are said of a share, beside how many records each part clipped."""


def spread(of: int, ranks: int) -> list[Coordinates]:
    """The coordinates of each rank: whole blocks of noise, as evenly as can be, the first ranks first.

    >>> [part.size for part in spread(3 * LARGE - 1, 2)], [part.size for part in spread(10, 2)]
    ([131072, 65535], [10, 0])
    """
    blocks = -(-of // LARGE)
    ends = [min(of, -(-blocks * rank // ranks) * LARGE) for rank in range(ranks + 1)]
    return [Coordinates(begin, end, of=of) for begin, end in pairwise(ends)]


def merged(parts: Sequence[ClippedSum[Tensor]]) -> ClippedSum[Tensor]:
    """The sum of sums over the shares of one batch, added in their order: each example is in one of them."""
    if len(parts) == 1:
        return parts[0]
    total_P = parts[0].secret.clone()
    for part in parts[1:]:
        total_P += part.secret
    heads = [_head(part) for part in parts]
    return _total(heads, total_P, part=None)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How a sum is cut up among ranks.

    Attributes:
        counts: how many shares of the batch each rank sums.
        clips: how many parts the query clips.
        state: numbers that must be the same on all ranks, or nothing is released.
    """

    counts: Sequence[int]
    clips: int
    state: tuple[float, ...]


def merged_over(
    wire: Wire,
    sums: Sequence[ClippedSum[Tensor]],
    shares: Shares,
    *,
    like_P: Tensor,
    failure: BaseException | None = None,
) -> ClippedSum[Tensor]:
    """This rank's coordinates of the sum of all ranks' sums, added in the order of the shares.

    Args:
        sums: this rank's, one per share; there may be no record in a share, and no share on a rank.
        like_P: a vector as long as the sum.
        failure: what kept this rank from summing: it stops all.

    Guarantee: nothing is handed on unless every rank has summed its shares and says the same `state` and bound.
    """
    count, width, spans = shares.counts[wire.rank], _WIDTH + shares.clips, spread(len(like_P), wire.ranks)
    heads_SW = torch.tensor([_head(each) for each in sums], dtype=torch.float64).view(-1, width)
    stacked_SP = torch.stack([each.secret for each in sums]) if sums else like_P.new_zeros(count, len(like_P)).double()
    said = [float(failure is not None), *shares.state]
    front = torch.cat([torch.tensor(said, dtype=torch.float64), heads_SW.flatten(), torch.zeros(count * width)])
    front = front[: len(said) + count * width].to(stacked_SP.device)
    pieces = [torch.cat([front, stacked_SP[:, at.begin : at.end].flatten()]) for at in spans]
    mine = spans[wire.rank]
    found = wire.swap(pieces, [len(said) + each * (width + mine.size) for each in shares.counts])
    words = [piece[: len(said)].tolist() for piece in found]
    wire.report(failure, [word[0] for word in words])
    if any(word != words[0] for word in words):
        raise RankFailed("the ranks disagree about release, bound or parameters; nothing was released; resume the run")
    heads, total = [], None
    for each, piece in zip(shares.counts, found, strict=True):
        begin = len(said) + each * width
        heads += piece[len(said) : begin].view(each, width).tolist()
        for row in piece[begin:].view(each, mine.size):
            total = row if total is None else total + row
    assert total is not None
    return _total(heads, total, part=mine)


def whole(wire: Wire, released: Tensor, *, of: int) -> Tensor:
    """What all ranks released, each its coordinates."""
    return torch.cat(wire.swap([released] * wire.ranks, [part.size for part in spread(of, wire.ranks)]))


def _head(part: ClippedSum[Tensor]) -> list[float]:
    """What is said of a share beside its sum."""
    seen, rows = part.diagnostics, part.rows
    counts = [share * rows for share in seen.clipped]
    loss = seen.loss * rows if rows else 0.0
    return [float(rows), float(part.additions), part.bound, loss, float(seen.nonfinite), *counts]


def _total(heads: Sequence[Sequence[float]], total: Tensor, *, part: Coordinates | None) -> ClippedSum[Tensor]:
    """The sum of shares with its facts; refuses shares that were clipped at different bounds."""
    bounds = {head[2] for head in heads}
    if len(bounds) != 1:
        raise RankFailed(f"shares of a batch were clipped at different bounds: {sorted(bounds)}; nothing was released")
    rows, additions, _, loss, nonfinite, *counts = (sum(column) for column in zip(*heads, strict=True))
    size = max(rows, 1.0)
    clipped = tuple(count / size for count in counts)
    return ClippedSum(
        secret=total,
        bound=bounds.pop(),
        rows=int(rows),
        diagnostics=Diagnostics(loss=loss / size, clipped=clipped, nonfinite=int(nonfinite)),
        additions=int(additions) + len(heads) if additions else 0,
        part=part,
    )
