"""From a direction to the next θ by a constant step, and which θ to hand out. Post-processing, free.

Other steps are in `steps.py`. To be handed out: the last θ, the paper's random iterate, a tail average, an EMA.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients.torch_state import elementwise


class Stepper(Protocol):
    """θ ← θ − (something made of the direction)."""

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """The next θ; `theta_P` is left as it is. `std`: the known noise in each coordinate of the direction."""

    def penalty(self, theta_P: Tensor) -> float:
        """The data-independent penalty whose gradient `advance` adds to the direction; 0 if it adds none."""
        return 0.0

    def state_dict(self) -> dict[str, Any]:
        """What the stepper remembers between steps."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember `state`."""


class Memoryless(Stepper):
    """A stepper that remembers nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to remember."""
        need(state == {}, "this step rule has no state", state=state)


@dataclass(frozen=True)
class ConstantStep(Memoryless):
    """θ − η·direction.

    >>> ConstantStep(0.5).advance(torch.ones(2), torch.tensor([1.0, 2.0]))
    tensor([0.5000, 0.0000])
    """

    rate: float

    def __post_init__(self) -> None:
        """Refuse rates that do not move."""
        need(0 < self.rate < math.inf, "the learning rate must be positive and finite", learning_rate=self.rate)

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step."""
        return elementwise(lambda here, v: torch.sub(here, v.to(here.dtype), alpha=self.rate), theta_P, direction_P)


class Output(Protocol):
    """Watches θ⁰, θ¹, …, θ^T and makes one θ of them."""

    def observe(self, time: int, theta_P: Tensor) -> None:
        """See θ^time."""

    def result(self) -> Tensor | None:
        """The θ to hand out; None if the run was stopped before the first one that it keeps."""

    def state_dict(self) -> dict[str, Any]:
        """What has been kept so far."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""


class _Kept:
    """Shared by all outputs: one kept vector and a weight."""

    def __init__(self) -> None:
        """Nothing kept yet."""
        self._kept: Tensor | None = None
        self._weight = 0.0

    def result(self) -> Tensor | None:
        """The kept vector."""
        return self._kept

    def state_dict(self) -> dict[str, Any]:
        """The kept vector and its weight."""
        return {"weight": self._weight} | ({} if self._kept is None else {"kept": self._kept})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._kept, self._weight = state.get("kept"), state["weight"]


class Last(_Kept):
    """θ^T."""

    def observe(self, time: int, theta_P: Tensor) -> None:
        """Keep the newest."""
        self._kept = theta_P


class RandomIterate(_Kept):
    """One of θ⁰ … θ^{T−1}, chosen uniformly beforehand (Algorithm 1, output)."""

    def __init__(self, steps: int, stream: np.random.Generator) -> None:
        """Choose which one, before anything private is seen."""
        super().__init__()
        self._weight = float(stream.integers(steps))

    def observe(self, time: int, theta_P: Tensor) -> None:
        """Keep the chosen one."""
        if time == int(self._weight):
            self._kept = theta_P


class TailAverage(_Kept):
    """The mean of the iterates after the first half of the steps, in float64."""

    def __init__(self, steps: int) -> None:
        """Average θ^t for t > steps/2 (always including θ^T)."""
        super().__init__()
        self._after = steps // 2

    def observe(self, time: int, theta_P: Tensor) -> None:
        """Add θ^time to the running mean."""
        if time > self._after:
            self._weight += 1
            newest = theta_P.double()
            self._kept = newest if self._kept is None else torch.lerp(self._kept.to(newest), newest, 1 / self._weight)


class Ema(_Kept):
    """Exponential moving average with the zero-start bias corrected; its memory is a tenth of the run."""

    def __init__(self, steps: int) -> None:
        """Decay 1 − 10/steps, at least one half."""
        super().__init__()
        self._decay = max(0.5, 1 - 10 / steps)

    def observe(self, time: int, theta_P: Tensor) -> None:
        """Mix θ^time in."""
        if time > 0:
            newest = theta_P.double()
            self._weight = self._decay * self._weight + (1 - self._decay)
            share = (1 - self._decay) / self._weight
            self._kept = newest if self._kept is None else torch.lerp(self._kept.to(newest), newest, share)


OUTPUTS = ("last", "random", "tail", "ema")


def make_output(name: str, *, steps: int, stream: np.random.Generator) -> Output:
    """The output called `name`."""
    need(name in OUTPUTS, f"the output must be one of {', '.join(OUTPUTS)}", output=name)
    if name == "last":
        return Last()
    if name == "random":
        return RandomIterate(steps, stream)
    if name == "tail":
        return TailAverage(steps)
    if name == "ema":
        return Ema(steps)
    raise AssertionError(name)
