"""The Gaussian airlock: charge first, then noise, then release, in one function."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from dpsrm.core.errors import BudgetExceeded, need
from dpsrm.core.events import Event, GaussianRelease, Sampling, Scheme, Spending, UnprotectedRelease
from dpsrm.core.ledger import Ledger
from dpsrm.core.secret import ClippedSum
from dpsrm.mechanisms.noise import gaussian_noise

_BLOCK = 64
"""Most releases charged by one ledger line, so that fast runs do not wait for the disk at every step."""


class Airlock:
    """Turns clipped sums into noisy means, each charged to the ledger before it exists.

    Args:
        ledger: where charges are written, and which knows the adjacency and the budget.
        planned: the releases foreseen; equal ones are charged in blocks ahead, never beyond the plan.
        epsilon_of: the accountant's ε of a spending at the budget's δ.
        noise: the secret noise stream.

    Guarantee: a value leaves only after (1) the charge for it, with exactly the sampling and the noise used, was
    accepted by the budget and is on disk, and (2) fresh noise of `noise_multiplier` times the sum's sensitivity was
    added. A release that would overspend raises `BudgetExceeded` and releases nothing.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        planned: Spending,
        epsilon_of: Callable[[Spending], float],
        noise: np.random.Generator,
    ) -> None:
        """Start with nothing charged ahead."""
        self.epsilon = 0.0
        self.released = 0
        self._ledger = ledger
        self._planned = planned
        self._epsilon_of = epsilon_of
        self._noise = noise
        self._credit: dict[Event, int] = {}

    def release(self, total: ClippedSum[Tensor], *, sampling: Sampling, noise_multiplier: float) -> Tensor:
        """The mean over the public (expected) batch size plus noise: secret/b + N(0, (s·Δ/b)² I), in float64.

        Args:
            total: the clipped sum; its bound gives the sensitivity Δ.
            sampling: how its records were drawn; charged as it is.
            noise_multiplier: s = std ÷ sensitivity; 0 means an unprotected release, charged as ε = ∞.
        """
        exact = sampling.scheme is not Scheme.POISSON
        need(
            not exact or total.rows == sampling.batch,
            "the sum must be over the batch that is charged",
            rows=total.rows,
        )
        if noise_multiplier == 0:
            self._pay(UnprotectedRelease(what="a sum without noise"))
            self.released += 1
            return total.secret / sampling.batch
        std = noise_multiplier * total.sensitivity(self._ledger.header.adjacency)
        need(
            0 < std < math.inf,
            "noise needs a finite, positive sensitivity",
            bound=total.bound,
            remedy="set a clip",
        )
        self._pay(GaussianRelease(noise_multiplier=float(noise_multiplier), sampling=sampling))
        self.released += 1
        return (total.secret + gaussian_noise(std, len(total.secret), self._noise)) / sampling.batch

    def _pay(self, event: Event) -> None:
        """Use a charge made ahead, or have the budget accept a new one and write it down."""
        if self._credit.get(event, 0) == 0:
            ahead = self._planned.count(event) - self._ledger.spending.count(event)
            count = self._approve(event, max(1, min(ahead, _BLOCK)))
            self._ledger.charge(event, count)
            self._credit[event] = count
        self._credit[event] -= 1

    def _approve(self, event: Event, count: int) -> int:
        """How many releases, `count` or fewer, the budget allows; `BudgetExceeded` if not even one."""
        allowed = self._ledger.header.epsilon
        while True:
            epsilon = self._epsilon_of(self._ledger.spending.plus(event, count))
            if allowed is None or epsilon <= allowed:
                self.epsilon = epsilon
                return count
            if count == 1:
                break
            count //= 2
        raise BudgetExceeded(
            f"the next release would spend epsilon={epsilon:.6g} of the allowed {allowed:.6g}; it was not made; "
            f"{self.released} release(s) were made before; take fewer steps, more noise or a larger budget"
        )
