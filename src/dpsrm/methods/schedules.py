"""Learning-rate decay and warm-up: pure functions of the step, and the stepper that applies them. Post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.methods.postprocessing import Stepper

DECAYS = ("constant", "linear", "cosine", "sqrt")


def decay(name: str, time: int, steps: int) -> float:
    """The factor of step `time` (0 … steps−1): 1 at first.

        constant 1 · linear 1 − t/T · cosine (1 + cos(πt/T))/2 · sqrt 1/√(1+t)

    >>> [round(decay(name, 3, 4), 3) for name in DECAYS]
    [1.0, 0.25, 0.146, 0.5]
    """
    need(name in DECAYS, f"the decay must be one of {', '.join(DECAYS)}", decay=name)
    share = time / steps
    if name == "constant":
        return 1.0
    if name == "linear":
        return 1 - share
    if name == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if name == "sqrt":
        return 1 / math.sqrt(1 + time)
    raise AssertionError(name)


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """A linear warm-up over `warmup` steps, then `decay` over the rest of `steps`.

    >>> rate = RateSchedule(decay="linear", warmup=2, steps=6)
    >>> [rate(time) for time in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    decay: str
    warmup: int
    steps: int

    def __post_init__(self) -> None:
        """Refuse schedules that never reach the full rate."""
        need(self.decay in DECAYS, f"the decay must be one of {', '.join(DECAYS)}", decay=self.decay)
        need(
            0 <= self.warmup < self.steps,
            "the warm-up must be shorter than the training",
            warmup=self.warmup,
            steps=self.steps,
        )

    def __call__(self, time: int) -> float:
        """The factor of the learning rate at step `time`."""
        if time < self.warmup:
            return (time + 1) / self.warmup
        return decay(self.decay, time - self.warmup, self.steps - self.warmup)


class Scheduled:
    """A stepper that goes the scheduled share of its inner stepper's way: θ + factor·(inner(θ) − θ).

    For every optimizer whose move is proportional to its learning rate (SGD with momentum, Adam, AdamW, RMSprop,
    Adagrad) this is the schedule of that learning rate.
    """

    def __init__(self, inner: Stepper, schedule: RateSchedule) -> None:
        """Wrap `inner`."""
        self._inner = inner
        self._schedule = schedule
        self._time = 0

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step."""
        factor = self._schedule(self._time)
        self._time += 1
        moved_P = self._inner.advance(theta_P, direction_P, std=std)
        return moved_P if factor == 1 else theta_P + factor * (moved_P - theta_P)

    def penalty(self, theta_P: Tensor) -> float:
        """The inner stepper's."""
        return self._inner.penalty(theta_P)

    def state_dict(self) -> dict[str, Any]:
        """The time and the inner stepper's state."""
        return {"time": self._time, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._time = state["time"]
        self._inner.load_state_dict(state["inner"])
