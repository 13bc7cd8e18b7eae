"""Which θ to hand out at the end: last, the paper's random iterate, tail average, EMA. Post-processing, free."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import need


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
