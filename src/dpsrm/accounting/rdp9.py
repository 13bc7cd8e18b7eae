"""`rdp9`: the bound the paper starts from — Thm 9 of Wang–Balle–Kasiviswanathan, Mironov's conversion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.curves import Array
from dpsrm.accounting.guarantee import Guarantee, check_delta, check_epsilon, exp_up, need_few_kinds, why_none
from dpsrm.core.errors import InputError
from dpsrm.core.events import (
    Adjacency,
    Event,
    GaussianRelease,
    PureRelease,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)

_ORDERS = np.arange(2, 513, dtype=np.float64)


@singledispatch
def _curve(event: Event) -> Array:
    """ρ(α) of one release at `_ORDERS`."""
    raise InputError(f"the rdp9 accountant does not know the release {event!r}; use one from dpsrm.core.events")


@_curve.register
def _(event: GaussianRelease) -> Array:
    if event.sampling.rate == 1:
        return curves.gaussian(event.noise_multiplier, _ORDERS)
    need_wor(event, "rdp9")
    general = curves.wor_general(event.sampling.rate, event.noise_multiplier, _ORDERS)
    return np.minimum(general, curves.gaussian(event.noise_multiplier, _ORDERS))


@_curve.register
def _(event: PureRelease) -> Array:
    return curves.pure(event.epsilon, _ORDERS)


@_curve.register
def _(event: ZcdpRelease) -> Array:
    return curves.zcdp(event.rho, _ORDERS)


@_curve.register
def _(event: UnprotectedRelease) -> Array:
    return np.full_like(_ORDERS, math.inf)


@lru_cache(maxsize=256)
def _release_curve(event: Event) -> Array:
    """ρ of one release, remembered."""
    return _curve(event)


def need_wor(event: GaussianRelease, name: str) -> None:
    """Refuse a batch that was not drawn without replacement."""
    if event.sampling.scheme is not Scheme.WOR:
        raise InputError(
            f"the {name} accountant covers sampling without replacement only; "
            f"got sampling={event.sampling.scheme.value!r}; use --sampling wor or --accountant pld"
        )


def need_replace_one(spending: Spending, name: str) -> None:
    """Refuse every adjacency but replace-one."""
    if spending.adjacency is not Adjacency.REPLACE_ONE:
        raise InputError(
            f"the {name} accountant covers replace-one adjacency only; "
            f"got adjacency={spending.adjacency.value!r}; use --adjacency replace-one or --accountant pld"
        )


@dataclass(frozen=True)
class Rdp9Accountant:
    """Thm 9 at integer orders 2..512, converted by ε = ρ(α) + ln(1/δ)/(α−1) (Mironov 2017).

    *Guarantee*: sound for WOR sampling under replace-one; a baseline, looser than `rdp` and `pld`.

    >>> from dpsrm.core.events import Charge, Sampling
    >>> wor = Sampling(scheme=Scheme.WOR, population=60000, batch=512)
    >>> release = GaussianRelease(noise_multiplier=2.8, sampling=wor)
    >>> spent = Spending.of([Charge(release, 1172)], adjacency=Adjacency.REPLACE_ONE)
    >>> round(Rdp9Accountant().epsilon(spent, 1e-5).epsilon, 2)
    1.2
    """

    name: str = "rdp9"

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """The smallest ε this accountant can prove at `delta`."""
        check_delta(delta)
        rho = self._total(spending)
        best = float(np.min(rho - math.log(delta) / (_ORDERS - 1))) if spending.charges else 0.0
        return self._answer(spending, epsilon=best, delta=delta)

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """The smallest δ this accountant can prove at `epsilon`."""
        check_epsilon(epsilon)
        rho = self._total(spending)
        with np.errstate(over="ignore"):
            log_delta = float(np.min((_ORDERS - 1) * (rho - epsilon)))
        return self._answer(spending, epsilon=epsilon, delta=exp_up(log_delta) if spending.charges else 0.0)

    def _total(self, spending: Spending) -> Array:
        """Σ count·ρ(α)."""
        need_replace_one(spending, self.name)
        need_few_kinds(spending)
        total = np.zeros_like(_ORDERS)
        with np.errstate(over="ignore"):
            for charge in spending.charges:
                total += charge.count * _release_curve(charge.event)
        return total

    def _answer(self, spending: Spending, *, epsilon: float, delta: float) -> Guarantee:
        """A guarantee that says by itself when there is none."""
        why = why_none(spending, epsilon=epsilon, delta=delta, otherwise="no Rényi order gives a finite bound")
        return Guarantee(
            epsilon=epsilon, delta=delta, accountant=self.name, adjacency=spending.adjacency, holds=not why, reason=why
        )
