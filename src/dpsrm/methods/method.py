"""What every method is: settings that name its queries beforehand, and a walk that asks them one by one.

`DirectionWalk` is what walks along a released direction share: θ^t, θ^{t−1}, v^t, the noise in it, and their state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import Query
from dpsrm.gradients.torch_state import elementwise
from dpsrm.mechanisms import Selection
from dpsrm.methods.postprocessing import Stepper

_STATE = ("theta", "previous", "direction", "std", "time")
_TINY = 1e-100
"""Stands for a radius of 0, since a clip must be positive; noise of this size vanishes in any float."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many updates, and how many records each release looks at; all public.

    `most` is for methods that draw their number of steps: how many it could have been (0: just `steps`). Their noise is
    calibrated to that, so it does not depend on the draw.
    """

    steps: int
    batch: int
    first_batch: int
    most: int = 0

    def __post_init__(self) -> None:
        """Refuse empty schedules."""
        need(self.steps >= 1, "training needs at least one step", steps=self.steps)
        need(self.batch >= 1, "a batch must have at least one record", batch=self.batch)
        need(
            self.first_batch >= 1,
            "the first batch must have at least one record",
            first_batch=self.first_batch,
        )

    @property
    def longest(self) -> Schedule:
        """The schedule the noise is calibrated for."""
        return replace(self, steps=self.most, most=0) if self.most else self


@dataclass(frozen=True)
class Stage:
    """`count` releases in a row, each over a batch of (expected) size `batch`.

    `zcdp` releases look at every record and are charged as ρ = 1/(2s²) of zero-concentrated privacy.
    """

    batch: int
    count: int
    zcdp: bool = False


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A noisy mean: a query, how many records to draw for it, and what it may cost.

    `rho` None means the plan's noise multiplier; a number is a zCDP price for a release over all records (∞: no noise).
    """

    query: Query
    batch: int
    rho: float | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A noisy argmin over points: which has the least Σ_i clip(f_i(point), 0, clip) + offset, for a zCDP price.

    Args:
        points: the candidates θ.
        offsets: a public number per candidate (a regulariser's value times the number of records).
        clip: each record's loss is clamped to [0, clip].
        batch: every record: a selection over a sample has no accountant here.
        rho: the price (∞: the exact argmin).
        selection: which noise.
    """

    points: tuple[Tensor, ...]
    offsets: tuple[float, ...]
    clip: float
    batch: int
    rho: float
    selection: Selection


class Walk(Protocol):
    """A method under way. It sees released values only, so everything it does is post-processing."""

    @property
    def theta(self) -> Tensor:
        """θ."""

    @property
    def direction(self) -> Tensor:
        """v."""

    @property
    def time(self) -> int:
        """How many updates were made; the run ends when they are as many as the schedule's steps."""

    def ask(self) -> Ask | Choice:
        """What to release next; asking twice changes nothing."""

    def tell(self, released: Tensor, *, std: float = 0.0) -> None:
        """Take the answer (to a `Choice`: the index) and perhaps move θ.

        `std` is the standard deviation of the noise in each coordinate of `released`: public, and 0 without noise.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later: a plain tree of tensors and numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""


class Method(ABC):
    """A method's settings: a frozen dataclass. The class attributes are what `dpsrm methods` and the docs print.

    Attributes:
        name: how config files and the command line call it.
        summary: what it does, in one line.
        guarantee: what one record can change, and how that is charged.
        use: when to take it.
        gradients_per_example: per release.
        private: False for methods that have no private form; they refuse a budget.
        adaptive: True if its releases are chosen as it goes: the ledger is then not predicted but filtered.
        output: which θ it hands out unless told otherwise.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    guarantee: ClassVar[str]
    use: ClassVar[str]
    gradients_per_example: ClassVar[int] = 1
    private: ClassVar[bool] = True
    adaptive: ClassVar[bool] = False
    output: ClassVar[str] = "tail"

    @abstractmethod
    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> Walk:
        """Start from θ⁰."""

    @abstractmethod
    def unclipped(self) -> Method:
        """The same method without clips: its non-private reference."""

    def stages(self, schedule: Schedule) -> tuple[Stage, ...]:
        """All releases the method will ask for: by default one per update, the first over `first_batch`."""
        first, rest = Stage(schedule.first_batch, 1), Stage(schedule.batch, schedule.steps - 1)
        return (first, rest) if rest.count else (first,)

    @property
    def foreseeable(self) -> bool:
        """Whether every release but the first looks at `schedule.batch` records, so that batches can be read ahead."""
        return type(self).stages is Method.stages

    def batch_for(self, n: int) -> int | None:
        """The batch size the method insists on for n records; None if the user chooses."""
        return None

    def rounds(self, steps: int, stream: np.random.Generator) -> int:
        """How many of `steps` updates will be made, decided before any record is seen."""
        return steps

    def calibrated(self, noise_multiplier: float) -> Method:
        """The method with prices that follow from the calibrated noise; most have none of their own."""
        return self


class DirectionWalk(ABC):
    """v^t = keep·v^{t−1} + gain·release, then θ^{t+1} = stepper(θ^t, v^t): a method says what to ask, keep and gain.

    The noise of the releases is independent, so its standard deviation in v^t is known and public:
    std² = keep²·std² + gain²·std_release².
    """

    def __init__(self, theta: Tensor, schedule: Schedule, stepper: Stepper) -> None:
        """Start from θ⁰, with nothing released yet."""
        self.theta = theta
        self.previous = theta
        self.direction = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        self.std = 0.0
        self.time = 0
        self.schedule = schedule
        self.stepper = stepper

    @abstractmethod
    def ask(self) -> Ask | Choice:
        """What to release next."""

    @abstractmethod
    def weights(self) -> tuple[float, float]:
        """(keep, gain) at this time."""

    @property
    def batch(self) -> int:
        """How many records the next release looks at."""
        return self.schedule.first_batch if self.time == 0 else self.schedule.batch

    def tell(self, released: Tensor, *, std: float = 0.0) -> None:
        """Mix the release into the direction and move θ."""
        self.mix(released, std)
        self.previous, self.theta = self.theta, self.stepper.advance(self.theta, self.direction, std=self.std)
        self.time += 1

    def mix(self, released: Tensor, std: float) -> None:
        """The direction and its noise, with the release in them."""
        keep, gain = self.weights()
        fresh = released if gain == 1 else elementwise(lambda new: gain * new, released)
        if keep != 0:
            fresh = elementwise(lambda new, old: torch.add(new, old, alpha=keep), fresh, self.direction)
        self.direction = fresh
        self.std = math.hypot(keep * self.std, gain * std)

    def distance(self) -> float:
        """‖θ^t − θ^{t−1}‖, a function of releases."""
        return float(torch.linalg.vector_norm(self.theta.double() - self.previous.double()))

    def state_dict(self) -> dict[str, Any]:
        """The walk's own numbers and the stepper's state."""
        return {name: getattr(self, name) for name in _STATE} | {"stepper": self.stepper.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.stepper.load_state_dict(state["stepper"])
        for name in _STATE:
            value, device = state[name], self.theta.device
            setattr(self, name, value.to(device) if isinstance(value, Tensor) else value)


def radius(per_unit: float, distance: float, *, at_most: float = math.inf) -> float:
    """The clip of a gradient difference: min(at_most, per_unit·distance), never 0.

    Guarantee: a function of public numbers.
    Edge cases: at distance 0 the differences are 0 and so, nearly, is the clip.

    >>> radius(2.0, 0.25), radius(2.0, 0.25, at_most=0.1), radius(math.inf, 0.0)
    (0.5, 0.1, inf)
    """
    if per_unit == math.inf:
        return at_most
    return max(min(at_most, per_unit * distance), _TINY)


def need_positive(**values: Any) -> None:
    """Refuse settings that are not positive numbers (∞ is one: no clip)."""
    for name, value in values.items():
        need(value > 0, f"{name} must be positive", **{name: value})
