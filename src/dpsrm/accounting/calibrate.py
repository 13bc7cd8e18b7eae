"""The accountants by name, and from a budget to a plan: noise for (ε, δ), steps for a noise, ε along a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType

from scipy.optimize import brentq

from dpsrm.accounting.guarantee import Accountant, check_delta, check_epsilon
from dpsrm.accounting.paper import PAPER, largest_order
from dpsrm.accounting.pld import PldAccountant
from dpsrm.accounting.rdp import RDP
from dpsrm.accounting.rdp9 import RDP9
from dpsrm.accounting.renyi import RenyiAccountant
from dpsrm.core.errors import InputError, need
from dpsrm.core.events import Spending

ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {"pld": PldAccountant(), **{each.name: RenyiAccountant(each) for each in (RDP, RDP9, PAPER)}}
)


def accountant(name: str) -> Accountant:
    """The accountant called `name`.

    >>> accountant("moments")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: no such accountant; got name='moments'; choose one of pld, rdp, rdp9, paper
    """
    if name not in ACCOUNTANTS:
        raise InputError(f"no such accountant; got name={name!r}; choose one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[name]


_TOLERANCE = 1.001  # the noise returned is at most 0.1 % above the smallest that works
_CLOSE = 3e-4  # how near, in log2 of the noise, the search comes
_FAR = 20.0  # ln(cost/ε) beyond this says no more than that it is far
_LEAST, _MOST = 0.01, 1e5
_STEPS_LIMIT = 10**9


def calibrate_noise(
    make: Callable[[float], Spending], *, accountant: Accountant, epsilon: float, delta: float
) -> float:
    """The smallest noise multiplier whose spending costs at most (`epsilon`, `delta`), to 0.1 %.

    Args:
        make: the whole planned spending for a noise multiplier s: any mixture of releases that all scale with s.
        accountant: who counts.

    *Guarantee*: never under — the s returned was evaluated and `accountant.epsilon(make(s), delta)` ≤ `epsilon`.

    *Edge cases*: 0.01 is the least noise ever returned. For `paper`, whose conditions are not monotone in s, all of
    0.83 .. 1000 is scanned in steps of 0.1 % and the first s that works is returned.

    >>> from dpsrm.accounting import ACCOUNTANTS
    >>> from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme
    >>> wor = Sampling(scheme=Scheme.WOR, population=50000, batch=256)
    >>> def make(s):
    ...     return Spending.of([Charge(GaussianRelease(noise_multiplier=s, sampling=wor), 2000)],
    ...                        adjacency=Adjacency.REPLACE_ONE)
    >>> round(calibrate_noise(make, accountant=ACCOUNTANTS["rdp"], epsilon=2.0, delta=1e-5), 2)
    1.21
    """
    check_epsilon(epsilon)
    need(epsilon > 0, "epsilon must be positive to calibrate noise", epsilon=epsilon)
    check_delta(delta)

    @cache
    def excess(noise: float) -> float:
        """ln(cost/ε): at most 0 exactly where the budget is kept."""
        cost = accountant.epsilon(make(noise), delta).epsilon
        value = math.log(cost / epsilon) if cost > 0 else -math.inf
        return value if cost <= epsilon else max(value, 1e-300)

    def fits(noise: float) -> bool:
        return excess(noise) <= 0

    if accountant.name == PAPER.name:
        return _scan(make, excess, epsilon=epsilon, delta=delta)
    low, high = _bracket(fits, epsilon=epsilon, delta=delta)
    return _refine(excess, low, high)


def max_steps(make: Callable[[int], Spending], *, accountant: Accountant, epsilon: float, delta: float) -> int:
    """The largest number of steps T ≥ 0 whose spending `make(T)` costs at most (`epsilon`, `delta`).

    *Guarantee*: 0 if even one step overspends; otherwise the T returned was evaluated and fits.
    *Edge cases*: refuses if 10⁹ steps still fit.
    """
    check_epsilon(epsilon)
    check_delta(delta)

    def fits(steps: int) -> bool:
        return accountant.epsilon(make(steps), delta).epsilon <= epsilon

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        need(
            high <= _STEPS_LIMIT,
            "this noise allows more than 10⁹ steps",
            epsilon=epsilon,
            remedy="lower the noise",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def epsilon_curve(
    make: Callable[[int], Spending], steps: Sequence[int], *, accountant: Accountant, delta: float
) -> list[float]:
    """ε after each of `steps` steps (math.inf where there is none); 0 steps cost 0."""
    return [accountant.epsilon(make(t), delta).epsilon if t > 0 else 0.0 for t in steps]


def _refine(excess: Callable[[float], float], low: float, high: float) -> float:
    """The smallest noise that fits, to 0.05 % from above, between one that does not fit and one that does.

    ln ε is nearly linear in ln s, so Brent's method finds the place in a few evaluations; what is returned lies just
    above it and was evaluated itself.
    """

    def gap(log_noise: float) -> float:
        return min(max(excess(2**log_noise), -_FAR), _FAR)

    if low == high:
        return high
    noise = 2 ** (brentq(gap, math.log2(low), math.log2(high), xtol=_CLOSE) + _CLOSE)
    while noise < high and excess(noise) > 0:
        noise *= 1 + _CLOSE
    return min(noise, high)


def _bracket(fits: Callable[[float], bool], *, epsilon: float, delta: float) -> tuple[float, float]:
    """Two noise multipliers, a factor of 2 apart, of which only the larger fits (equal if 0.01 fits)."""
    if fits(1.0):
        high = 1.0
        while high > _LEAST:
            low = max(high / 2, _LEAST)
            if not fits(low):
                return low, high
            high = low
        return high, high
    low = 1.0
    while low < _MOST:
        if fits(2 * low):
            return low, 2 * low
        low *= 2
    raise InputError(
        f"no noise multiplier up to {_MOST:g} meets the budget; got epsilon={epsilon!r}, delta={delta!r}; "
        "raise epsilon, or drop the releases whose cost does not fall with this noise"
    )


def _scan(
    make: Callable[[float], Spending], excess: Callable[[float], float], *, epsilon: float, delta: float
) -> float:
    """The first s of a 0.1 % ladder from √0.7 at which the paper's bound exists and is at most ε."""
    most, at, noise = 0, 0.0, math.sqrt(0.7) * (1 + 1e-12)
    while noise < 1000:
        if excess(noise) <= 0:
            return _refine(excess, noise / _TOLERANCE, noise)
        order = largest_order(make(noise))
        most, at = (order, noise) if order > most else (most, at)
        noise *= _TOLERANCE
    needed = math.ceil(math.log(1 / delta) / epsilon) + 1
    if most == 0:
        why = "they fail at every order α ≥ 2 and every noise"
    elif most < needed:
        why = f"this budget needs an order α ≥ {needed}, and they allow at most α = {most} (at s = {at:.3g})"
    else:
        why = "at every noise where they hold, the bound exceeds epsilon"
    raise InputError(
        f"no noise makes the paper's conditions hold because {why}; got epsilon={epsilon!r}, delta={delta!r}; "
        "use --accountant pld"
    )
