"""What every method is: settings that name its queries beforehand, and a walk that asks them one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import Query
from dpsrm.mechanisms import Selection
from dpsrm.methods.steps import Stepper


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
        ...

    @property
    def direction(self) -> Tensor:
        """v."""
        ...

    @property
    def time(self) -> int:
        """How many updates were made; the run ends when they are as many as the schedule's steps."""
        ...

    def ask(self) -> Ask | Choice:
        """What to release next; asking twice changes nothing."""
        ...

    def tell(self, released: Tensor, *, std: float = 0.0) -> None:
        """Take the answer (to a `Choice`: the index) and perhaps move θ.

        `std` is the standard deviation of the noise in each coordinate of `released`: public, and 0 without noise.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later: a plain tree of tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


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
