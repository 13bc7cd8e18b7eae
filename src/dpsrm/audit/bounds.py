"""From canaries' scores to a lower bound of ε, for the plan that was claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtri

from dpsrm.accounting import accountant
from dpsrm.audit.one_run import Inverse, one_run_epsilon, profile_inverse, refutes
from dpsrm.audit.white_box import Observed
from dpsrm.core.events import Charge, Event, GaussianRelease, Sampling, Spending, ZcdpRelease
from dpsrm.training import Plan

Array = npt.NDArray[np.float64]
_PROFILE = 48
"""At how many ε the curve of a plan is taken."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound of ε at a confidence; `strict` is the one that assumes nothing about the curve (Steinke et al.)."""

    epsilon: float
    confidence: float
    strict: float
    canaries: int
    guesses: int
    right: int


def one_run(observed: Observed, *, guesses: int | None = None, confidence: float = 0.95) -> Bound:
    """The bound from one run: guess the `guesses` canaries whose scores are largest, either way.

    Args:
        guesses: decided on beforehand, from m alone; by default one in 150, at least 50.

    Guarantee: if the run keeps the trade-off curve that its plan claims at ε (the same releases and sampling, more
    noise), the bound exceeds ε with a chance of at most 1 − confidence; whatever canaries have in common.
    """
    return guess_bound(observed.plan, observed.scores(), observed.signs_m, guesses=guesses, confidence=confidence)


def guess_bound(
    plan: Plan, scores: Array, signs_m: npt.NDArray[np.int64], *, guesses: int | None = None, confidence: float = 0.95
) -> Bound:
    """`one_run`, for any scores: positive ones say +."""
    m = len(signs_m)
    r = guesses if guesses is not None else min(m, max(50, m // 150))
    chosen = np.argsort(-np.abs(scores), kind="stable")[:r]
    v = int((np.sign(scores[chosen]) == signs_m[chosen]).sum())

    def refuted(louder: float) -> bool:
        return refutes(curve(plan, louder), m=m, r=r, v=v, confidence=confidence)

    strict = one_run_epsilon(m=m, r=r, v=v, delta=_delta(plan), confidence=confidence)
    found = max(strict, epsilon_at(plan, least_refuted(refuted)))
    return Bound(epsilon=found, confidence=confidence, strict=strict, canaries=m, guesses=r, right=v)


def per_step(observed: Observed, *, confidence: float = 0.95) -> Bound:
    """The bound from every release by itself: how well the sign of a drawn canary shows, and how often one is drawn.

    Clopper–Pearson for the errors either way and for the share drawn, then μ = −Φ⁻¹(FPR) − Φ⁻¹(FNR) ≤ 1/s, and the
    accountant for as many releases with that noise and that share (Nasr et al. 2023).

    Guarantee: as `one_run`'s, if the noise of different coordinates and releases is independent (`prove` looks at it).
    """
    seen, says = observed.drawn_Tm, np.sign(observed.values_Tm)
    plus, minus = (seen & (observed.signs_m == side) for side in (1, -1))
    each = (1 - confidence) / 3
    missed = error_bound(int((says[plus] < 0).sum()), int(plus.sum()), each)
    false = error_bound(int((says[minus] > 0).sum()), int(minus.sum()), each)
    mu = float(-ndtri(missed) - ndtri(false))
    share = float(stats.beta.ppf(each, seen.sum(), seen.size - seen.sum() + 1)) if not seen.all() else 1.0
    rate = float(observed.rate_T.mean())
    right = int((says[seen] == np.broadcast_to(observed.signs_m, seen.shape)[seen]).sum())
    epsilon = _with_noise(observed.plan, mu, share / rate) if mu > 0 else 0.0
    return Bound(
        epsilon=epsilon,
        confidence=confidence,
        strict=0.0,
        canaries=len(observed.signs_m),
        guesses=int(seen.sum()),
        right=right,
    )


def error_bound(errors: int, trials: int, alpha: float) -> float:
    """Clopper–Pearson's upper bound of an error rate, which it exceeds with a chance of at most `alpha`."""
    return float(stats.beta.ppf(1 - alpha, errors + 1, trials - errors)) if errors < trials else 1.0


def _with_noise(plan: Plan, mu: float, shares: float) -> float:
    """ε of the plan's releases with noise of 1/μ sensitivities and `shares` times the claimed share of records."""

    def changed(event: Event) -> Event:
        if isinstance(event, ZcdpRelease):
            return ZcdpRelease(rho=mu * mu / 2)
        assert isinstance(event, GaussianRelease)
        drawn = event.sampling
        batch = max(1, min(drawn.population, int(drawn.batch * shares)))
        sampling: Sampling = drawn if drawn.batch == drawn.population else replace(drawn, batch=batch)
        return GaussianRelease(noise_multiplier=1 / mu, sampling=sampling)

    return _epsilon(_changed(plan, changed), _delta(plan))


@lru_cache(maxsize=1024)
def _curve(spending: Spending, delta: float) -> Inverse:
    """f̄⁻¹ of a spending, from the accountant's δ(ε)."""
    proof = accountant("pld")
    most = max(1.0, 3 * _epsilon(spending, delta))
    epsilons = np.concatenate([np.linspace(0.0, most / 3, _PROFILE // 2), np.linspace(most / 3, most, _PROFILE // 2)])
    deltas = [proof.delta(spending, float(epsilon)).delta for epsilon in epsilons]
    return profile_inverse(epsilons.tolist(), deltas)


def curve(plan: Plan, louder: float) -> Inverse:
    """f̄⁻¹ of the plan with `louder` times its noise."""
    return _curve(_louder(plan, louder), _delta(plan))


def epsilon_at(plan: Plan, louder: float | None) -> float:
    """ε of the plan with `louder` times its noise; 0 for None."""
    return 0.0 if louder is None else _epsilon(_louder(plan, louder), _delta(plan))


def _delta(plan: Plan) -> float:
    """The promised δ."""
    assert plan.privacy is not None
    return plan.privacy.delta


def _louder(plan: Plan, louder: float) -> Spending:
    """The plan's spending with `louder` times the noise."""

    def changed(event: Event) -> Event:
        if isinstance(event, ZcdpRelease):
            return ZcdpRelease(rho=event.rho / louder**2)
        assert isinstance(event, GaussianRelease)
        return replace(event, noise_multiplier=event.noise_multiplier * louder)

    return _changed(plan, changed)


def _changed(plan: Plan, change: Callable[[Event], Event]) -> Spending:
    """The plan's spending with every event changed."""
    charges = [Charge(change(charge.event), charge.count) for charge in plan.spending.charges]
    return Spending.of(charges, adjacency=plan.spending.adjacency)


@lru_cache(maxsize=256)
def _epsilon(spending: Spending, delta: float) -> float:
    """ε of a spending."""
    return accountant("pld").epsilon(spending, delta).epsilon


def least_refuted(refuted: Callable[[float], bool]) -> float | None:
    """The least noise, in units of the claimed one and within 1 %, whose curve is refuted; None if none is."""
    low, high = 0.25, 16.0
    if not refuted(high):
        return None
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high
