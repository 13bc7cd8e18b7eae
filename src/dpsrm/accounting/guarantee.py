"""What an accountant answers: a frozen `Guarantee` with its conditions, and the checks all accountants share.

Also the Gaussian mechanism alone, in closed form (Balle & Wang 2018), in logarithms so that nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Protocol

import numpy as np
from scipy.special import log_ndtr

from dpsrm.core.errors import InputError, LedgerError, need
from dpsrm.core.events import Adjacency, Event, GaussianRelease, Scheme, Spending, UnprotectedRelease

MOST_KINDS = 4096
_FINE, _LARGE = Context(prec=40), 700
"""How finely e^ε is computed, and from which ε on its power of ten is told."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One requirement of a theorem, whether it holds here, and the numbers that decide it."""

    name: str
    holds: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy under `adjacency`, as proved by `accountant`.

    Attributes:
        epsilon: ε; `math.inf` when there is no guarantee.
        delta: δ; 1.0 when a question "which δ?" has no useful answer.
        holds: False when nothing finite is guaranteed.
        reason: why not, or "".
        conditions: what the accountant's theorem requires, with the numbers.
        error_budget: bound on the numerical error of δ; already part of the answer (`pld` only).
        lower_bound: ε that an explicit attack reaches, when it was asked for; a diagnostic, no guarantee.

    >>> Guarantee(epsilon=math.inf, delta=1e-5, accountant="rdp", adjacency=Adjacency.REPLACE_ONE,
    ...           holds=False, reason="a statistic was released without noise").to_json()["epsilon"]
    'inf'
    """

    epsilon: float
    delta: float
    accountant: str
    adjacency: Adjacency
    holds: bool = True
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    error_budget: float | None = None
    lower_bound: float | None = None

    def __str__(self) -> str:
        """ε and δ in short, or that there is none."""
        return f"ε={rounded_up(self.epsilon, 4)}, δ={rounded_up(self.delta)}" if self.holds else "no guarantee"

    def to_json(self) -> dict[str, Any]:
        """A JSON object: ε = ∞ is the string "inf"; null when a condition of the theorem fails.

        *Edge cases*: the bare token Infinity, which is not JSON, never appears.
        """
        body = asdict(self)
        undecided = not self.holds and any(not condition.holds for condition in self.conditions)
        body["adjacency"] = self.adjacency.value
        body["conditions"] = [asdict(condition) for condition in self.conditions]
        for name in ("epsilon", "lower_bound"):
            if body[name] == math.inf:
                body[name] = None if undecided else "inf"
        if undecided and self.delta == 1:
            body["delta"] = None
        return body


class Accountant(Protocol):
    """Reads a `Spending`; answers ε for a δ, or δ for an ε."""

    @property
    def name(self) -> str:
        """How the command line calls this accountant."""

    def epsilon(self, spending: Spending, delta: float) -> Guarantee:
        """The smallest ε this accountant can prove at `delta`."""

    def delta(self, spending: Spending, epsilon: float) -> Guarantee:
        """The smallest δ this accountant can prove at `epsilon`."""


def check_delta(delta: float, *, least: float = 0.0) -> None:
    """Refuse a δ that is no probability, or below what the accountant can resolve.

    >>> check_delta(1e-12, least=1e-9)
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: delta must be at least 1e-09 for this accountant; got delta=1e-12; \
use --accountant rdp for a smaller one
    """
    need(
        0 < delta < 1,
        "delta must lie strictly between 0 and 1",
        delta=delta,
        remedy="try 1e-5, or about 1/n²",
    )
    need(
        delta >= least,
        f"delta must be at least {least:g} for this accountant",
        delta=delta,
        remedy="use --accountant rdp for a smaller one",
    )


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that is negative, infinite or not a number."""
    need(0 <= epsilon < math.inf, "epsilon must be finite and not negative", epsilon=epsilon, remedy="try 1.0")


def exp_up(log_delta: float) -> float:
    """e^x, at most 1, and never 0: what is too small to be a number is rounded up to the least one."""
    return max(math.exp(min(log_delta, 0.0)), math.ulp(0.0))


def rounded_up(value: float, digits: int = 6) -> str:
    """A bound from above, for people: as `:g` writes it, but never below the value.

    >>> rounded_up(0.12341, 4), rounded_up(1e-5), rounded_up(2.0), rounded_up(math.inf)
    ('0.1235', '1e-05', '2', 'inf')
    """
    return _rounded(float(value), digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 6) -> str:
    """A bound from below, or noise, for people: never above the value."""
    return _rounded(float(value), digits, ROUND_FLOOR)


def percent_up(share: float, digits: int) -> str:
    """A bound on a share, in percent, never below it.

    >>> percent_up(0.62341, 3)
    '62.4'
    """
    return _rounded(Decimal(repr(float(share))).scaleb(2), digits, ROUND_CEILING)


def exponential_up(epsilon: float, digits: int) -> str:
    """e^ε, never below it, also where no float could hold it.

    >>> exponential_up(1.0, 4), exponential_up(1000.0, 4), exponential_up(0.0, 4)
    ('2.719', '10^434.3', '1')
    """
    exact = Decimal(epsilon)
    if epsilon >= _LARGE:
        return f"10^{_rounded(_FINE.divide(exact, Decimal(10).ln(_FINE)), digits, ROUND_CEILING)}"
    return _rounded(_FINE.next_plus(_FINE.exp(exact)) if epsilon else Decimal(1), digits, ROUND_CEILING)


def _rounded(value: float | Decimal, digits: int, way: str) -> str:
    """`value` in so many digits; a float stands for the shortest decimal that reads back as it."""
    if not math.isfinite(value):
        return f"{value:g}"
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    return f"{float(Context(prec=digits, rounding=way).create_decimal(exact)):.{digits}g}"


def need_few_kinds(spending: Spending) -> None:
    """Refuse more kinds of release than any run has: each takes time and memory, and a file may name millions."""
    need(
        len(spending.charges) <= MOST_KINDS,
        f"a spending has at most {MOST_KINDS} different releases",
        different=len(spending.charges),
    )


def need_supported(event: Event, adjacency: Adjacency) -> None:
    """Refuse a sampling scheme that no accountant covers under `adjacency`."""
    if not isinstance(event, GaussianRelease) or event.sampling.rate == 1:
        return
    if event.sampling.scheme is Scheme.WOR and adjacency is not Adjacency.REPLACE_ONE:
        raise unsupported(event, adjacency)


def unsupported(event: GaussianRelease, adjacency: Adjacency) -> InputError:
    """The error for a sampling scheme that no accountant covers under `adjacency`."""
    scheme = event.sampling.scheme.value
    return InputError(
        f"no accountant covers {scheme} sampling under {adjacency.value} adjacency; "
        "got a fixed batch size, which reveals n; use --adjacency replace-one or --sampling poisson"
    )


def unprotected(spending: Spending) -> str:
    """Why nothing can be guaranteed for `spending` whatever its noise, or ""."""
    named = [charge.event.what for charge in spending.charges if isinstance(charge.event, UnprotectedRelease)]
    return f"released without noise: {', '.join(named)}" if named else ""


def why_none(spending: Spending, *, epsilon: float, delta: float, otherwise: str) -> str:
    """ "" if (ε, δ) says something; else why it does not: no noise, δ = 1, or `otherwise`."""
    if epsilon < math.inf and delta < 1:
        return ""
    return unprotected(spending) or (otherwise if epsilon == math.inf else "no delta below 1 holds at this epsilon")


def strict_epsilon(proof: Accountant, spending: Spending, delta: float) -> Guarantee:
    """`proof.epsilon` for charges from a file that may come from anywhere.

    Guarantee: a figure that was computed without overflow or undefined values, or `LedgerError`.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            guarantee = proof.epsilon(spending, delta)
    except (ArithmeticError, MemoryError) as error:
        raise LedgerError(f"{proof.name} cannot compute what these charges cost: {error}") from error
    if math.isnan(guarantee.epsilon):
        raise LedgerError(f"{proof.name} cannot compute what these charges cost")
    return guarantee


_ULP = 2.0**-52
_SHARP = 1e6  # a μ above this makes the arguments of Φ cancel; Φ(−x) ≤ e^{−x²/2} answers instead
_ROUND = 1e-12
_UNDERFLOW = -745.0  # e to this power is the least number there is


def gaussian_delta(noise: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = 1/`noise`, rounded up.

    The rounding errors of both logarithms are added; the first term alone is an upper bound too.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    mu = 1 / noise
    if mu > _SHARP:
        distance = epsilon / mu * (1 - _ROUND) - mu / 2 * (1 + _ROUND)
        return exp_up(-distance * distance / 2) if distance > 0 else 1.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    if first < _UNDERFLOW:
        return math.ulp(0.0)
    inner = float(log_ndtr(-mu / 2 - epsilon / mu))
    rounding = 4 * _ULP * (1 + abs(first) + abs(inner))
    return min(math.exp(first) * min(-math.expm1(min(epsilon + inner - first, 0.0)) + rounding, 1.0), 1.0)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The least ε ≥ 0 with δ(ε) ≤ `delta`: the upper end of a bisection.

    *Guarantee*: `gaussian_delta(noise, gaussian_epsilon(noise, d))` ≤ d.

    >>> round(gaussian_epsilon(1 / 0.06133, 1e-5), 4)
    0.2
    """
    mu = 1 / noise
    if mu > _SHARP:
        return (mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))) * (1 + 4 * _ROUND)
    if gaussian_delta(noise, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(noise, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if gaussian_delta(noise, middle) <= delta else (middle, high)
    return high


def gaussian_mu(epsilon: float, delta: float) -> float:
    """μ of the Gaussian mechanism that spends (ε, δ) exactly (Dong, Roth & Su 2022), to nine digits.

    >>> round(gaussian_mu(0.2, 1e-5), 5), round(gaussian_mu(0.5, 1e-5), 5)
    (0.06133, 0.14221)
    """
    low, high = 1e-9, 1e6
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_delta(1 / middle, epsilon) <= delta else (low, middle)
    return low
