"""A window in the airlock, for tests of privacy: it opens only where the ledger says that nothing is private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.events import Event, GaussianRelease, Sampling, Spending, UnprotectedRelease, ZcdpRelease
from dpsrm.core.secret import ClippedScores, ClippedSum
from dpsrm.mechanisms.airlock import Airlock
from dpsrm.mechanisms.noisy_min import Selection


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One release as seen from both sides of the airlock.

    Attributes:
        exact: the sum, or the scores of a choice, before noise.
        released: what the airlock let out (a choice: the index).
        claimed: the sensitivity (a choice: the spread) that the noise was made for.
        std: the standard deviation that the noise in the sum is said to have; 0 for a choice.
        price: what it was asked to cost.
        rows: how many records the sum says it is over.
        sampling: how they are said to be drawn.
        spent: all releases so far, as the airlock counts them after this one.
    """

    exact: Tensor = field(repr=False)
    released: Tensor = field(repr=False)
    claimed: float
    std: float
    price: Event
    rows: int
    sampling: Sampling
    spent: Spending
    choice: bool = False


def multiplier(price: Event) -> float:
    """The noise, in sensitivities, that a price of a Gaussian release buys; 0 for an unprotected one.

    >>> multiplier(ZcdpRelease(rho=0.125))
    2.0
    """
    if isinstance(price, GaussianRelease):
        return price.noise_multiplier
    return 1 / math.sqrt(2 * price.rho) if isinstance(price, ZcdpRelease) else 0.0


class WatchedAirlock(Airlock):
    """The airlock it is made of, which writes down what passes, and can let out what another run released instead.

    Every release goes through the airlock's own functions, unchanged: charged first, then noise, then out.

    Args:
        door: the airlock of a run with a research seed, which ledger, certificate and `verify` call not private.
        replay: what to hand to the method instead of what was released: a neighbour's releases. With the same
            releases, the same must be asked and published: a method sees nothing else.

    Guarantee: none, and it refuses the airlock of a private run.
    """

    def __init__(self, door: Airlock, *, replay: Sequence[Tensor] = ()) -> None:
        """Stand where `door` stands."""
        need(
            not door._ledger.header.private_randomness,
            "only a run that is not private can be watched",
            remedy="give a research seed; the run's ledger and certificate then say that it is not private",
        )
        vars(self).update(vars(door))
        self.passages: list[Passage] = []
        self._replay = replay

    def release(self, total: ClippedSum[Tensor], *, sampling: Sampling, noise_multiplier: float) -> Tensor:
        """As the airlock's, written down."""
        released = super().release(total, sampling=sampling, noise_multiplier=noise_multiplier)
        if noise_multiplier == 0:
            return self._note_sum(total, released, sampling, UnprotectedRelease(what="a sum without noise"))
        price = GaussianRelease(noise_multiplier=float(noise_multiplier), sampling=sampling)
        return self._note_sum(total, released, sampling, price)

    def release_zcdp(self, total: ClippedSum[Tensor], *, sampling: Sampling, rho: float) -> Tensor:
        """As the airlock's, written down."""
        before = len(self.passages)
        released = super().release_zcdp(total, sampling=sampling, rho=rho)
        if len(self.passages) > before:
            return released
        return self._note_sum(total, released, sampling, ZcdpRelease(rho=rho))

    def select(self, scores: ClippedScores, *, sampling: Sampling, rho: float, selection: Selection) -> int:
        """As the airlock's, written down."""
        index = super().select(scores, sampling=sampling, rho=rho, selection=selection)
        passage = Passage(
            exact=torch.tensor(scores.secret, dtype=torch.float64),
            released=torch.tensor(index),
            claimed=scores.spread(self._ledger.header.adjacency),
            std=0.0,
            price=ZcdpRelease(rho=rho) if rho < math.inf else UnprotectedRelease(what="a choice without noise"),
            rows=scores.rows,
            sampling=sampling,
            spent=self.released,
            choice=True,
        )
        return int(self._instead(passage))

    def _note_sum(self, total: ClippedSum[Tensor], released: Tensor, sampling: Sampling, price: Event) -> Tensor:
        """Write a sum down; what to hand on."""
        s = multiplier(price)
        std = self.noise_std(total, sampling=sampling, noise_multiplier=s) * sampling.batch
        passage = Passage(
            exact=total.secret.detach().clone(),
            released=released.detach().clone(),
            claimed=total.sensitivity(self._ledger.header.adjacency),
            std=std,
            price=price,
            rows=total.rows,
            sampling=sampling,
            spent=self.released,
        )
        return self._instead(passage)

    def _instead(self, passage: Passage) -> Tensor:
        """Keep a passage; what the method is told."""
        self.passages.append(passage)
        at = len(self.passages) - 1
        return (self._replay[at] if at < len(self._replay) else passage.released).clone()
