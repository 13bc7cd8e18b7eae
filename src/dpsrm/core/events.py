"""What was (or will be) released: frozen facts that samplers and mechanisms state and accountants consume.

`noise_multiplier` always means: standard deviation of the noise ÷ sensitivity under the stated adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from dpsrm.core.errors import LedgerError, need

LARGEST = 2**53
"""The largest count or size: above it a float no longer knows every whole number."""


class Adjacency(str, Enum):
    """Which two datasets must be indistinguishable."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"

    __hash__ = str.__hash__  # equal texts are equal members; Enum's own hash is slow, and charges are looked up by it


class Scheme(str, Enum):
    """How a batch is drawn: a fresh subset without replacement, independent coins, or everything."""

    WOR = "wor"
    POISSON = "poisson"
    FULL = "full"

    __hash__ = str.__hash__  # as in `Adjacency`


DEFAULT_SAMPLING = Scheme.POISSON
"""How commands draw unless told otherwise, as `Privacy` does (a test compares them): it needs the least noise."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """A batch of `batch` (for Poisson: expected) records out of `population`, drawn by `scheme`.

    >>> Sampling(scheme=Scheme.WOR, population=1000, batch=50).rate
    0.05
    """

    scheme: Scheme
    population: int
    batch: int

    def __post_init__(self) -> None:
        """Refuse sizes that no draw could have."""
        whole = type(self.population) is int and type(self.batch) is int
        need(whole, "the sizes of a draw are whole numbers", n=self.population, batch=self.batch)
        need(self.population <= LARGEST, f"a dataset has at most {LARGEST} records")
        need(self.population >= 1, "a dataset must have at least one record", n=self.population)
        need(self.batch >= 1, "a batch must have at least one record", batch=self.batch)
        need(
            self.batch <= self.population,
            "the batch cannot be larger than the dataset",
            batch=self.batch,
            n=self.population,
            remedy="choose a smaller batch",
        )
        full = self.batch == self.population
        need(
            full or self.scheme is not Scheme.FULL,
            "a full batch has n records",
            batch=self.batch,
            n=self.population,
        )

    @property
    def rate(self) -> float:
        """The sampling rate q = b/n."""
        return self.batch / self.population


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """A sum over a sampled batch plus Gaussian noise of `noise_multiplier` times its sensitivity."""

    noise_multiplier: float
    sampling: Sampling

    def __post_init__(self) -> None:
        """Refuse noise that protects nothing or is not a number."""
        ok = isinstance(self.noise_multiplier, float) and 0 < self.noise_multiplier < math.inf
        need(
            ok,
            "the noise multiplier must be a positive, finite float",
            noise_multiplier=self.noise_multiplier,
        )


def _need_number(value: object, name: str) -> None:
    """Refuse what is no float (a ledger from elsewhere may say anything)."""
    need(isinstance(value, float) or (type(value) is int and abs(value) <= LARGEST), f"{name} must be a number")


@dataclass(frozen=True, kw_only=True)
class PureRelease:
    """An ε-DP release on the whole dataset (Laplace, exponential noise, noisy-min), in the stated adjacency."""

    epsilon: float

    def __post_init__(self) -> None:
        """Refuse a cost that is not a positive number."""
        _need_number(self.epsilon, "epsilon")
        need(0 < self.epsilon < math.inf, "epsilon of a pure release must be positive", epsilon=self.epsilon)


@dataclass(frozen=True, kw_only=True)
class ZcdpRelease:
    """A ρ-zCDP release on the whole dataset, in the stated adjacency."""

    rho: float

    def __post_init__(self) -> None:
        """Refuse a cost that is not a positive number."""
        _need_number(self.rho, "rho")
        need(0 < self.rho < math.inf, "rho of a zCDP release must be positive", rho=self.rho)


@dataclass(frozen=True, kw_only=True)
class UnprotectedRelease:
    """An exact statistic of private records, without noise: whatever is charged beside it, ε = ∞."""

    what: str

    def __post_init__(self) -> None:
        """Refuse what is no short text."""
        need(isinstance(self.what, str) and len(self.what) <= 200, "say in a few words what is released")


Event = GaussianRelease | PureRelease | ZcdpRelease | UnprotectedRelease
_KINDS: dict[str, type[Event]] = {
    "gaussian": GaussianRelease,
    "pure": PureRelease,
    "zcdp": ZcdpRelease,
    "unprotected": UnprotectedRelease,
}


def event_to_json(event: Event) -> dict[str, Any]:
    """A JSON object that `event_from_json` reads back to an equal event.

    >>> event_to_json(PureRelease(epsilon=0.1))
    {'kind': 'pure', 'epsilon': 0.1}
    """
    kinds = {cls: kind for kind, cls in _KINDS.items()}
    fields = asdict(event)
    if isinstance(event, GaussianRelease):
        fields["sampling"]["scheme"] = event.sampling.scheme.value
    return {"kind": kinds[type(event)], **fields}


def event_from_json(body: Mapping[str, Any]) -> Event:
    """The event a ledger line states; `LedgerError` if it states none."""
    try:
        fields = {name: value for name, value in body.items() if name != "kind"}
        cls = _KINDS[body["kind"]]
        if cls is GaussianRelease:
            drawn = dict(fields["sampling"])
            fields["sampling"] = Sampling(scheme=Scheme(drawn.pop("scheme")), **drawn)
        return cls(**fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LedgerError(f"not a release dpsrm knows: {str(body)[:200]} ({error})") from error


@dataclass(frozen=True)
class Charge:
    """`count` releases of the same event."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        """Refuse charges that would lower what was spent."""
        need(
            type(self.count) is int and 1 <= self.count <= LARGEST,
            f"a charge counts 1 … {LARGEST} releases",
            count=self.count if isinstance(self.count, int) and abs(self.count) <= LARGEST else "…",
        )


@dataclass(frozen=True)
class Spending:
    """Everything charged (or planned), as totals per event, under one adjacency; what accountants read.

    The order of releases does not matter to any accountant here, so equal events are merged.

    >>> s = Spending.of([Charge(PureRelease(epsilon=0.1), 2)], adjacency=Adjacency.REPLACE_ONE)
    >>> s.plus(PureRelease(epsilon=0.1), 3).charges
    (Charge(event=PureRelease(epsilon=0.1), count=5),)
    """

    charges: tuple[Charge, ...]
    adjacency: Adjacency

    @classmethod
    def of(cls, charges: Iterable[Charge], *, adjacency: Adjacency) -> Spending:
        """The totals of `charges`, in the order in which each event first appears."""
        totals: dict[Event, int] = {}
        for charge in charges:
            totals[charge.event] = totals.get(charge.event, 0) + charge.count
        return cls(tuple(Charge(event, count) for event, count in totals.items()), adjacency)

    def plus(self, event: Event, count: int) -> Spending:
        """This spending and `count` more releases of `event`."""
        return Spending.of([*self.charges, Charge(event, count)], adjacency=self.adjacency)

    @property
    def releases(self) -> int:
        """How many releases are charged in all."""
        return sum(charge.count for charge in self.charges)

    def count(self, event: Event) -> int:
        """How many releases of exactly `event` are charged."""
        return sum(charge.count for charge in self.charges if charge.event == event)
