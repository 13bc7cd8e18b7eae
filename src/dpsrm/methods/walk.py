"""What all walks along a released direction share: θ^t, θ^{t−1}, v^t, the noise known to be in it, and their state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients.torch_state import elementwise
from dpsrm.methods.method import Ask, Choice, Schedule
from dpsrm.methods.steps import Stepper

_STATE = ("theta", "previous", "direction", "std", "time")
_TINY = 1e-100
"""Stands for a radius of 0, since a clip must be positive; noise of this size vanishes in any float."""


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
