"""Canaries in gradient space: records that each own a coordinate, with a coin that says in which direction they pull.

Shapes: B examples, m canaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.secret import Streams
from dpsrm.gradients import Batch, ModelLosses, PerExampleLoss

_STRONG = 1e5
"""How many times a canary's gradient is scaled, far above any clip; every other one is a hundred times as strong."""


class CanaryModel(nn.Module):
    """Dummy coordinates, one per canary, beside a model (or none), and a clock that other records push forward.

    A canary's loss is ±(its coordinate)·(clock): its gradient, and the gradient's difference between two steps, both
    point along its own coordinate, the same way, because the clock only grows. The clip does the rest.
    """

    def __init__(self, canaries: int, inner: nn.Module | None = None) -> None:
        """All coordinates at 0."""
        super().__init__()
        self.inner = inner
        self.own = nn.Embedding(canaries, 1)
        self.clock = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.own.weight)
        nn.init.zeros_(self.clock.weight)

    def forward(self, canary: Tensor) -> tuple[Tensor, Tensor]:
        """The canary's coordinate and the time."""
        own_B: Tensor = self.own(canary).squeeze(-1)
        return own_B, self.clock(torch.ones_like(own_B).unsqueeze(-1)).squeeze(-1)


def canary_losses(loss: PerExampleLoss | None) -> ModelLosses:
    """The losses of canaries, and of other records under the inner model's loss."""

    def losses(model: Any, batch: Batch) -> Tensor:
        own_B, time_B = model(batch["canary"])
        sign_B = batch["sign"]
        others_B = -time_B
        if loss is not None:
            others_B = others_B + loss(model.inner(batch["inputs"]), batch["targets"])
        mine: Tensor = sign_B * own_B * (1.0 + time_B.detach()) + (sign_B == 0) * others_B
        return mine

    return ModelLosses(losses)


@dataclass(frozen=True, kw_only=True)
class CanaryData:
    """Records of which the first m are canaries; `signs_m` are their coins (secret to the attacker until scored)."""

    records: dict[str, Tensor]
    signs_m: npt.NDArray[np.int64]

    @property
    def canaries(self) -> int:
        """m."""
        return len(self.signs_m)


def canary_data(
    canaries: int, others: int, *, seed: int, inputs: Tensor | None = None, targets: Any = None
) -> CanaryData:
    """m canaries with fair coins, and others, which are records of the inner model if there is one.

    Args:
        inputs, targets: of the others, for the inner model; canaries get the first ones, to which nothing looks.
    """
    stream = Streams.seeded(seed).output
    signs_m = 2 * stream.integers(0, 2, canaries) - 1
    strength_m = _STRONG * np.where(np.arange(canaries) % 2, 1.0, 100.0)
    sign = torch.from_numpy(np.concatenate([signs_m * strength_m, np.zeros(others)])).float()
    records = {"canary": torch.cat([torch.arange(canaries), torch.zeros(others, dtype=torch.int64)]), "sign": sign}
    if inputs is not None:
        rows = torch.arange(canaries + others).sub(canaries).clamp_min(0) % len(inputs)
        records |= {"inputs": inputs[rows], "targets": targets[rows]}
    return CanaryData(records=records, signs_m=signs_m)
