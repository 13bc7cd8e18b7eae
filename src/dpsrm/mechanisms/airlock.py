"""The Gaussian airlock: charge first, then noise, then release, in one function; noise whose low bits tell nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.core.errors import BudgetExceeded, LedgerError, need
from dpsrm.core.events import (
    Charge,
    Event,
    GaussianRelease,
    Sampling,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)
from dpsrm.core.reused import buffer
from dpsrm.core.secret import LARGE, ClippedScores, ClippedSum, Coordinates, block_states
from dpsrm.mechanisms.noisy_min import Selection, noisy_min, selection_epsilon
from dpsrm.mechanisms.normals import fill_normals
from dpsrm.mechanisms.sum_log import SumLog
from dpsrm.runs.book import Book

_GRID_BITS = 10


def gaussian_noise(std: float, size: int | Coordinates, stream: np.random.Generator) -> Tensor:
    """`size` float64 draws of N(0, std²), each the halved sum of four independent normals (one, if `size` is large).

    A single floating-point Gaussian can only take some of the doubles near a value, which an attacker can use to tell
    neighbours apart (Mironov 2012; Jin et al. 2022). The sum of four hides which ones
    (Holohan & Braghin 2021, "Secure random sampling in differential privacy", §4).

    Args:
        size: how many; or, of the noise of a vector, the part for some `Coordinates`, which begin with a block.

    Edge cases: above `LARGE` coordinates four draws of each would cost more than they are worth; what is released must
    then go through `on_grid`, which removes the low bits.

    >>> gaussian_noise(2.0, 3, np.random.default_rng(0)).shape
    torch.Size([3])
    """
    part = Coordinates(0, size, of=size) if isinstance(size, int) else size
    if part.of > LARGE:
        return torch.from_numpy(_large(part, stream)).mul_(std)
    need(part.whole or not part.size, "the noise of a small vector is made at once", part=part)
    halves = np.add.reduce(stream.standard_normal((4, part.size)), axis=0)
    halves *= std / 2
    return torch.from_numpy(halves)


def _large(part: Coordinates, stream: np.random.Generator) -> npt.NDArray[np.float64]:
    """A standard normal for each coordinate, block by block; the stream then stands behind all blocks of the vector."""
    need(part.begin % LARGE == 0 or not part.size, "noise begins with a block", begin=part.begin)
    found, last = buffer(8 * part.size).view(np.float64), -(-part.of // LARGE)
    for block, _ in enumerate(block_states(stream, 0, last)):
        begin, end = (min(max(at * LARGE, part.begin), part.end) for at in (block, block + 1))
        if end > begin:
            fill_normals(found[begin - part.begin : end - part.begin], stream)
    return found


def on_grid(noisy: Tensor, std: float, *, of: int | None = None) -> Tensor:
    """A large `noisy` sum rounded, in its place, to multiples of the public power of two between std/2048 and std/1024.

    Guarantee: rounding to a grid that depends on public numbers alone is post-processing of sum + noise; it maps the
    2^42 or so doubles of each cell to one value, so which of them the generator could reach is no longer visible.

    Args:
        of: how many numbers the whole vector has, if `noisy` is a part of it.

    Edge cases: a small vector (see `gaussian_noise`) is left as it is. Rounding adds less than 1e-7 of the variance.

    >>> float(on_grid(torch.full((LARGE + 1,), 0.30001, dtype=torch.float64), 1.0)[0] * 1024)
    307.0
    """
    if (noisy.numel() if of is None else of) <= LARGE:
        return noisy
    cell = grid(std)
    return noisy.div_(cell).round_().mul_(cell)  # a power of two: both are exact


def grid(std: float) -> float:
    """2^(⌊log₂ std⌋ − 10): the distance of neighbouring values of a large release.

    >>> grid(1.5), grid(0.9)
    (0.0009765625, 0.00048828125)
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)


_FORKED = (
    "this process was forked off while the run was open; releases are made by the process that opened it, because two "
    "would add the same noise to two sums; train in one process, or open a run of its own in each"
)
_BLOCK = 64
"""Most releases charged by one ledger line, so that fast runs do not wait for the disk at every step."""


class Airlock:
    """Turns clipped sums into noisy means, each charged to the ledger before it exists.

    Args:
        ledger: where charges are written, and which knows the adjacency and the budget.
        planned: the releases planned; equal ones are charged in blocks ahead, never beyond the plan.
        epsilon_of: the accountant's ε of a spending at the budget's δ.
        noise: the secret noise stream.
        released: the releases of an interrupted run that its checkpoint knows of. What the ledger holds beyond them was
            charged, and perhaps released and lost; it is kept, to be used up by making the same releases again.
        sum_log: knows what each release was made of, where a release may be made again.

    Guarantee: a value leaves only after (0) it was found to be made of the same as before, if its number is one of
    those made before, (1) the charge for it, with exactly the sampling and the noise used, was
    accepted by the budget and is on disk, and (2) fresh noise of `noise_multiplier` times the sum's sensitivity was
    added. A release that would overspend raises `BudgetExceeded` and releases nothing.
    """

    def __init__(
        self,
        ledger: Book,
        *,
        planned: Spending,
        epsilon_of: Callable[[Spending], float],
        noise: np.random.Generator,
        released: Spending | None = None,
        sum_log: SumLog | None = None,
    ) -> None:
        """Start with nothing charged ahead, or where an interrupted run's checkpoint stands."""
        self.releases = 0 if released is None else released.releases
        self._ledger = ledger
        self._planned = planned
        self._epsilon_of = epsilon_of
        self._noise = noise
        self._sum_log = sum_log
        self._unused_charges = _unused_charges(ledger.spending, released)
        self._spent = (Spending.of([], adjacency=ledger.spending.adjacency), 0.0)
        self._plan_fits: bool | None = None
        self._process = os.getpid()

    @property
    def epsilon(self) -> float:
        """ε of what was released so far, computed when asked; the budget is kept by what was *charged*.

        Where releases are made again, those behind them were seen, too: until they are reached, all that is charged
        counts.
        """
        behind = self._sum_log is not None and len(self._sum_log) > self.releases
        released = self._ledger.spending if behind else self.released
        if released != self._spent[0]:
            self._spent = released, self._epsilon_of(released) if released.charges else 0.0
        return self._spent[1]

    @property
    def released(self) -> Spending:
        """What was released so far: what was charged, less what was charged ahead."""
        charged = self._ledger.spending
        unused = self._unused_charges
        counts = ((charge.event, charge.count - unused.get(charge.event, 0)) for charge in charged.charges)
        return Spending.of([Charge(event, n) for event, n in counts if n], adjacency=charged.adjacency)

    def release(self, total: ClippedSum[Tensor], *, sampling: Sampling, noise_multiplier: float) -> Tensor:
        """The mean over the public (expected) batch size plus noise: secret/b + N(0, (s·Δ/b)² I), in float64.

        Args:
            total: the clipped sum; its bound gives the sensitivity Δ.
            sampling: how its records were drawn; charged as it is.
            noise_multiplier: s = std ÷ sensitivity; 0 means an unprotected release, charged as ε = ∞.
        """
        if noise_multiplier == 0:
            return self._released(total, sampling, 0.0, UnprotectedRelease(what="a sum without noise"))
        return self._released(total, sampling, noise_multiplier, _gaussian(float(noise_multiplier), sampling))

    def release_zcdp(self, total: ClippedSum[Tensor], *, sampling: Sampling, rho: float) -> Tensor:
        """As `release`, over all records, for a zCDP price: s = 1/√(2ρ). ρ = ∞ means no noise, charged as ε = ∞."""
        _need_all(sampling)
        if rho == math.inf:
            return self.release(total, sampling=sampling, noise_multiplier=0.0)
        return self._released(total, sampling, zcdp_multiplier(rho), ZcdpRelease(rho=rho))

    def select(self, scores: ClippedScores, *, sampling: Sampling, rho: float, selection: Selection) -> int:
        """The index of the least score, told with noise for a zCDP price (ρ = ∞: exactly, charged as ε = ∞)."""
        self._need_own_process()
        _need_all(sampling)
        _need_rows(scores.rows, sampling)
        if self._sum_log is not None:
            self._sum_log.need_same_scores(scores, release=self.releases, said=repr((rho, selection)))
        if rho == math.inf:
            self._pay(UnprotectedRelease(what="a choice without noise"))
            self.releases += 1
            return min(range(len(scores.secret)), key=lambda j: scores.secret[j])
        need(0 < scores.bound < math.inf, "noise needs a finite, positive clip of the losses", bound=scores.bound)
        self._pay(ZcdpRelease(rho=rho))
        self.releases += 1
        return noisy_min(
            scores,
            epsilon=selection_epsilon(rho, selection),
            selection=selection,
            adjacency=self._ledger.header.adjacency,
            stream=self._noise,
        )

    def noise_std(self, total: ClippedSum[Tensor], *, sampling: Sampling, noise_multiplier: float) -> float:
        """The standard deviation s·Δ/b of the noise in each coordinate of a released mean: public."""
        if noise_multiplier == 0:
            return 0.0
        return noise_multiplier * total.sensitivity(self._ledger.header.adjacency) / sampling.batch

    def _released(self, total: ClippedSum[Tensor], sampling: Sampling, noise_multiplier: float, event: Event) -> Tensor:
        """Pay for `event`, then release the mean with the noise it stands for."""
        self._need_own_process()
        _need_rows(total.rows, sampling)
        std = self.noise_std(total, sampling=sampling, noise_multiplier=noise_multiplier) * sampling.batch
        if noise_multiplier != 0:
            rule = "noise needs a finite, positive sensitivity"
            need(0 < std < math.inf, rule, bound=total.bound, remedy="set a clip")
        if self._sum_log is not None:
            self._sum_log.need_same_sum(total, release=self.releases, std=std, batch=sampling.batch)
        self._pay(event)
        self.releases += 1
        if noise_multiplier == 0:
            return total.secret / sampling.batch
        part = total.coordinates(total.secret.numel())
        noise = gaussian_noise(std, part, self._noise)
        noisy = noise.to(total.secret.device).add_(total.secret)
        return on_grid(noisy, std, of=part.of).div_(float(sampling.batch))

    def _need_own_process(self) -> None:
        """Refuse a process that was forked off, before it writes anything: it would make the same noise."""
        if os.getpid() != self._process:
            raise LedgerError(_FORKED)

    def _pay(self, event: Event, count: int = 1) -> None:
        """Use charges made ahead, or have the budget accept new ones and write them down."""
        unused = self._unused_charges.get(event, 0)
        while unused < count:
            ahead = self._planned.count(event) - self._ledger.spending.count(event)
            charged = self._approve(event, max(1, min(ahead, _BLOCK)))
            self._ledger.charge(event, charged)
            self._unused_charges[event] = unused = unused + charged
        self._unused_charges[event] = unused - count

    def _approve(self, event: Event, count: int) -> int:
        """How many releases, `count` or fewer, the budget allows; `BudgetExceeded` if not even one."""
        allowed = self._ledger.header.epsilon
        if allowed is None or self._within_plan(self._ledger.spending.plus(event, count), allowed):
            return count
        while True:
            epsilon = self._epsilon_of(self._ledger.spending.plus(event, count))
            if epsilon <= allowed:
                return count
            if count == 1:
                break
            count //= 2
        raise BudgetExceeded(
            f"the next release would spend epsilon={rounded_up(epsilon)} of the allowed {allowed:.6g}; it was not "
            f"made; {self.releases} release(s) were made before; take fewer steps, more noise or a larger budget"
        )

    def _within_plan(self, spending: Spending, allowed: float) -> bool:
        """Whether `spending` is part of a plan that fits the budget: a part costs no more than the whole."""
        if self._plan_fits is None:
            self._plan_fits = self._epsilon_of(self._planned) <= allowed
        return self._plan_fits and all(c.count <= self._planned.count(c.event) for c in spending.charges)


def zcdp_multiplier(rho: float) -> float:
    """s = 1/√(2ρ): the noise multiplier with which a Gaussian release is ρ-zCDP (Bun & Steinke 2016, Prop. 1.6).

    >>> zcdp_multiplier(0.125)
    2.0
    """
    return 0.0 if rho == math.inf else 1 / math.sqrt(2 * rho)


@lru_cache(maxsize=64)
def _gaussian(noise_multiplier: float, sampling: Sampling) -> GaussianRelease:
    """The event of a Gaussian release: the same object at every step of a run."""
    return GaussianRelease(noise_multiplier=noise_multiplier, sampling=sampling)


def _unused_charges(charged: Spending, released: Spending | None) -> dict[Event, int]:
    """What was charged and not yet released; `LedgerError` if more was released than charged."""
    before = Spending.of([], adjacency=charged.adjacency) if released is None else released
    short = [charge for charge in before.charges if charge.count > charged.count(charge.event)]
    if short:
        raise LedgerError(f"the ledger charges less than was released ({short[0]}): it was cut off or exchanged")
    return {charge.event: charge.count - before.count(charge.event) for charge in charged.charges}


def _need_rows(rows: int, sampling: Sampling) -> None:
    """Refuse a sum over other records than those charged."""
    exact = sampling.scheme is not Scheme.POISSON
    need(not exact or rows == sampling.batch, "the sum must be over the batch that is charged", rows=rows)


def _need_all(sampling: Sampling) -> None:
    """Refuse a zCDP price for a sample: amplification has no zCDP form here."""
    need(sampling.scheme is Scheme.FULL, "a zCDP price is for a release over all records", scheme=sampling.scheme.value)
