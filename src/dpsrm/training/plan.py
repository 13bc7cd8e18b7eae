"""From settings to a verified plan: how much noise, and exactly which releases will be charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dpsrm.accounting import Guarantee, accountant, calibrate_noise
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.core.errors import BudgetExceeded, need
from dpsrm.core.events import (
    Adjacency,
    Charge,
    Event,
    GaussianRelease,
    Sampling,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)
from dpsrm.core.filter import fits_filter, whole_filter, zcdp_sum
from dpsrm.methods import Method, Schedule, Stage
from dpsrm.runs.ledger import Header, ProtectedUnit
from dpsrm.training.settings import Privacy

Noise = Callable[..., float]
"""A function like `noise_for`."""

UNPROTECTED = UnprotectedRelease(what="a sum without noise")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will release, decided and verified before it touches a record.

    `noise_multiplier` 0 is the non-private reference, whose predicted ledger says ε = ∞. For an adaptive method
    `spending` is only what it would release at its first prices; the budget is kept by a zCDP filter (core/filter.py):
    what would bring the sum of all ρ above `filter_rho`, fixed here, is refused; the guarantee is that of the filter.
    """

    n: int
    schedule: Schedule
    method: Method
    privacy: Privacy | None
    noise_multiplier: float
    spending: Spending
    guarantee: Guarantee | None
    filter_rho: float | None = None

    @property
    def chargeable_ahead(self) -> Spending:
        """What may be charged ahead: everything, or nothing if the method decides as it goes."""
        return Spending.of([], adjacency=self.spending.adjacency) if self.method.adaptive else self.spending

    @property
    def reserved(self) -> Spending:
        """The most that may ever be charged: the prediction, or the whole filter if the method decides as it goes."""
        return self.spending if self.filter_rho is None else whole_filter(self.spending, self.filter_rho)

    def sampling(self, batch: int) -> Sampling:
        """How a batch of this size is drawn."""
        return _sampling(self.n, batch, Scheme.WOR if self.privacy is None else self.privacy.sampling)

    def header(self, *, private_randomness: bool) -> Header:
        """The opening line of the run's ledger."""
        p, n = self.privacy, self.n
        unit = p and p.unit and ProtectedUnit(name=p.unit, count=n, rows=p.rows_per_unit or 1)
        return Header(
            adjacency=self.spending.adjacency,
            epsilon=None if self.privacy is None else self.privacy.epsilon,
            delta=None if self.privacy is None else self.privacy.delta,
            accountant="none" if self.privacy is None else self.privacy.accountant,
            private_randomness=private_randomness,
            filter_rho=self.filter_rho,
            unit=unit or None,
        )

    def epsilon_of(self, spending: Spending) -> float:
        """ε of `spending` at the promised δ, by the plan's accountant.

        For an adaptive method it is that of the whole filter from the first release on, and above the promised ε if
        (and only if) the filter does not allow `spending`.
        """
        if self.privacy is None:
            return float("inf")
        if self.filter_rho is not None:
            return self._filtered_epsilon(spending, self.filter_rho, self.privacy)
        if self.guarantee is not None and spending == self.spending:
            return self.guarantee.epsilon
        return accountant(self.privacy.accountant).epsilon(spending, self.privacy.delta).epsilon

    def _filtered_epsilon(self, spending: Spending, limit: float, privacy: Privacy) -> float:
        """`epsilon_of` where a filter decides."""
        if not spending.charges:
            return 0.0
        if fits_filter(spending, limit):
            return privacy.epsilon if self.guarantee is None else self.guarantee.epsilon
        rho = zcdp_sum(spending)
        beyond = math.nextafter(privacy.epsilon, math.inf)
        return math.inf if rho is None else max(beyond, _zcdp_guarantee(float(rho), privacy).epsilon)


def noise_for(method: Method, schedule: Schedule, *, n: int, privacy: Privacy) -> float:
    """The noise multiplier the settings give, or else the least with which the longest schedule keeps the budget."""
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    stages, proof = method.stages(schedule.longest), accountant(privacy.accountant)

    def spend(noise_multiplier: float) -> Spending:
        return predict(stages, n=n, privacy=privacy, noise_multiplier=noise_multiplier)

    return calibrate_noise(spend, accountant=proof, epsilon=privacy.epsilon, delta=privacy.delta)


def make_plan(method: Method, schedule: Schedule, *, n: int, privacy: Privacy | None, noise: Noise = noise_for) -> Plan:
    """Calibrate the noise to the budget (by `noise`, which may remember) and predict the ledger.

    Guarantee: the predicted spending costs at most privacy.epsilon at privacy.delta, or `BudgetExceeded` is raised.
    """
    if privacy is None:
        spending = Spending.of([Charge(UNPROTECTED, schedule.steps)], adjacency=Adjacency.REPLACE_ONE)
        plain = method.unclipped()
        return Plan(
            n=n, schedule=schedule, method=plain, privacy=None, noise_multiplier=0.0, spending=spending, guarantee=None
        )
    need(method.private, f"{method.name} has no private form", remedy="train it without a budget: private = false")
    s = noise(method, schedule.longest, n=n, privacy=privacy)
    spending = predict(method.stages(schedule), n=n, privacy=privacy, noise_multiplier=s)
    guarantee = accountant(privacy.accountant).epsilon(spending, privacy.delta)
    if not guarantee.epsilon <= privacy.epsilon:
        raise BudgetExceeded(
            f"{schedule.steps} steps with noise_multiplier={s:.6g} would cost epsilon={rounded_up(guarantee.epsilon)}, "
            f"more than the allowed {privacy.epsilon:.6g}; take fewer steps or leave the noise to calibration"
            + (f" ({guarantee.reason})" if guarantee.reason else "")
        )
    filter_rho = largest_filter(spending, privacy) if method.adaptive else None
    return Plan(
        n=n,
        schedule=schedule,
        method=method.calibrated(s),
        privacy=privacy,
        noise_multiplier=s,
        spending=spending,
        guarantee=guarantee if filter_rho is None else _zcdp_guarantee(filter_rho, privacy),
        filter_rho=filter_rho,
    )


def largest_filter(spending: Spending, privacy: Privacy) -> float:
    """ρ*: the largest, within a thousandth, for which ρ*-zCDP costs at most ε; no less than `spending` needs."""
    needed = zcdp_sum(spending)
    need(needed is not None, "an adaptive method must price all its releases in zCDP")
    within = _rounded_up(needed or Fraction(0))
    step, beyond = 1e-3, math.inf
    if not _zcdp_guarantee(within, privacy).epsilon <= privacy.epsilon:
        within, beyond = 0.0, within
    while beyond > within * (1 + 1e-3):
        candidate = within * (1 + step) if beyond == math.inf else (within + beyond) / 2
        if _zcdp_guarantee(candidate, privacy).epsilon <= privacy.epsilon:
            within, step = candidate, 2 * step
        else:
            beyond = candidate
    return within


def _rounded_up(value: Fraction) -> float:
    """The least float that is not below `value`."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def _zcdp_guarantee(rho: float, privacy: Privacy) -> Guarantee:
    """What ρ-zCDP costs, by the promised accountant."""
    spending = Spending.of([Charge(ZcdpRelease(rho=rho), 1)], adjacency=privacy.adjacency)
    return accountant(privacy.accountant).epsilon(spending, privacy.delta)


def predict(stages: tuple[Stage, ...], *, n: int, privacy: Privacy, noise_multiplier: float) -> Spending:
    """The ledger that `stages` will write."""
    s = float(noise_multiplier)

    def event(stage: Stage) -> Event:
        if stage.zcdp:
            return ZcdpRelease(rho=1 / (2 * s**2))
        return GaussianRelease(noise_multiplier=s, sampling=_sampling(n, stage.batch, privacy.sampling))

    return Spending.of((Charge(event(stage), stage.count) for stage in stages), adjacency=privacy.adjacency)


@lru_cache(maxsize=64)
def _sampling(n: int, batch: int, scheme: Scheme) -> Sampling:
    """`scheme`, except that a batch of everything is drawn (and charged) as the full batch."""
    return Sampling(scheme=Scheme.FULL if batch == n else scheme, population=n, batch=batch)
