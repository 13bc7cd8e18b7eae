"""DP-Adam: Adam on the released direction, with the known noise taken out of its second moment (Tang et al. 2024)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.methods.postprocessing import Stepper


class CorrectedAdam(Stepper):
    """θ − η·m̂/(√max(v̂ − n̂, floor²·n̂) + 1e-8), m̂ and v̂ Adam's corrected moments, n̂ the same average of std².

    The direction is gradient plus noise of a public variance std² per coordinate, so E[direction²] = gradient² + std²:
    Adam's denominator is mostly noise, and the same for all coordinates, unless it is subtracted.

    Args:
        rate: η.
        betas: (β1, β2).
        floor: the least denominator, in standard deviations of the noise: how far a coordinate without signal may move.

    Guarantee: post-processing of releases and of public noise levels.
    Edge cases: without noise it is `torch.optim.Adam`.
    Departs from the paper: the floor is relative to the noise (theirs, √γ', is an absolute number to tune), and the
    variance may differ from step to step.

    Source: Tang, Panda & Lécuyer 2024, "DP-AdamBC".

    >>> CorrectedAdam(0.1).advance(torch.zeros(2), torch.tensor([1.0, -2.0]))
    tensor([-0.1000,  0.1000])
    """

    def __init__(self, rate: float, *, betas: tuple[float, float] = (0.9, 0.999), floor: float = 0.5) -> None:
        """Remember nothing yet."""
        need(0 < rate < math.inf, "the learning rate must be positive and finite", learning_rate=rate)
        need(all(0 <= beta < 1 for beta in betas), "betas must be in [0, 1)", betas=betas)
        need(floor > 0, "floor must be positive", floor=floor)
        self._rate, self._betas, self._floor = rate, betas, floor
        self._time = 0
        self._noise = 0.0
        self._moments: tuple[Tensor, ...] = ()

    def advance(self, theta_P: Tensor, direction_P: Tensor, *, std: float = 0.0) -> Tensor:
        """One step."""
        g_P, (beta1, beta2) = direction_P.double(), self._betas
        m_P, v_P = self._moments or (torch.zeros_like(g_P), torch.zeros_like(g_P))
        self._moments = (beta1 * m_P + (1 - beta1) * g_P, beta2 * v_P + (1 - beta2) * g_P**2)
        self._noise = beta2 * self._noise + (1 - beta2) * std**2
        self._time += 1
        mean_P = self._moments[0] / (1 - beta1**self._time)
        square_P = self._moments[1] / (1 - beta2**self._time)
        noise = self._noise / (1 - beta2**self._time)
        signal_P = torch.clamp(square_P - noise, min=self._floor**2 * noise)
        return theta_P - (self._rate * mean_P / (signal_P.sqrt() + 1e-8)).to(theta_P.dtype)

    def state_dict(self) -> dict[str, Any]:
        """The time, the noise's running variance, and both moments."""
        return {"time": self._time, "noise": self._noise, "moments": list(self._moments)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self._time, self._noise, self._moments = state["time"], state["noise"], tuple(state["moments"])
