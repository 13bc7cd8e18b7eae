"""What every method is: settings that name its queries beforehand, and a walk that asks them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import Query
from dpsrm.methods.steps import Stepper


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many updates, and how many records each release looks at; all public."""

    steps: int
    batch: int
    first_batch: int

    def __post_init__(self) -> None:
        """Refuse empty schedules."""
        need(self.steps >= 1, "training needs at least one step", steps=self.steps)
        need(self.batch >= 1, "a batch must have at least one record", batch=self.batch)
        need(
            self.first_batch >= 1,
            "the first batch must have at least one record",
            first_batch=self.first_batch,
        )


@dataclass(frozen=True)
class Stage:
    """`count` releases in a row, each over a batch of (expected) size `batch`."""

    batch: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The next question: a query, and how many records to draw for it."""

    query: Query
    batch: int


class Walk(Protocol):
    """A method under way. It sees released values only, so everything it does is post-processing."""

    theta: Tensor
    direction: Tensor

    def ask(self) -> Ask:
        """What to release next."""
        ...

    def tell(self, released: Tensor) -> None:
        """Take the release and move θ."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later: a plain tree of tensors and numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        ...


class Method(Protocol):
    """A method's settings (a frozen dataclass)."""

    name: ClassVar[str]
    summary: ClassVar[str]
    gradients_per_example: ClassVar[int]
    private: ClassVar[bool]

    def stages(self, schedule: Schedule) -> tuple[Stage, ...]:
        """All releases the method will ask for, in order."""
        ...

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> Walk:
        """Start from θ⁰."""
        ...

    def unclipped(self) -> Method:
        """The same method without clips: its non-private reference."""
        ...
