"""A method of one's own, run by `dpsrm.train`: DP-SGD that asks for the gradient ahead of θ, as Nesterov's does.

    r^t = mean over B_t of clip(∇f_i(θ^t + β(θ^t − θ^{t−1})), C) + noise,  v^t = r^t

A method says what to ask; drawing, clipping, charging and noise are the library's, so it cannot spend what is not
charged. Whatever it does with a release is post-processing. Run it with: python own_method.py
"""

import math
import os
from dataclasses import dataclass, replace
from typing import ClassVar

import dpsrm
import torch
from dpsrm.gradients import Part, Query
from dpsrm.methods import Ask, DirectionWalk, Method
from torch import nn


@dataclass(frozen=True, kw_only=True)
class LookAhead(Method):
    name: ClassVar[str] = "look-ahead"
    summary: ClassVar[str] = "DP-SGD with gradients taken where momentum would lead"
    guarantee: ClassVar[str] = "one record moves each released mean by at most 2*C/b under replace-one"
    use: ClassVar[str] = "an example"

    max_grad_norm: float = 1.0
    look: float = 0.9

    def begin(self, theta, *, schedule, stepper):
        return LookAheadWalk(self, theta, schedule, stepper)

    def unclipped(self):
        return replace(self, max_grad_norm=math.inf)


class LookAheadWalk(DirectionWalk):  # keeps theta, previous, direction and time; checkpoints them; moves theta
    def __init__(self, settings, theta, schedule, stepper):
        super().__init__(theta, schedule, stepper)
        self.settings = settings

    def ask(self):
        ahead = self.theta + self.settings.look * (self.theta - self.previous)
        part = Part(coefficients=(1.0,), clip=self.settings.max_grad_norm)
        return Ask(query=Query(points=(ahead,), parts=(part,)), batch=self.batch)

    def weights(self):
        return 0.0, 1.0  # v = 0·v + 1·release


if __name__ == "__main__":
    n = int(os.environ.get("EXAMPLE_RECORDS", "10000"))
    inputs = torch.randn(n, 20)
    labels = (inputs[:, :5].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))
    settings = dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=2.0, delta=1e-5),
        method=LookAhead(look=0.9),
        training=dpsrm.Training(batch=n // 20, epochs=5, learning_rate=0.5),
    )
    run = dpsrm.train(model, nn.CrossEntropyLoss(reduction="none"), (inputs, labels), settings, out="runs/own-method")
    fresh = torch.randn(1000, 20)
    right = (model(fresh).argmax(1) == (fresh[:, :5].sum(1) > 0)).float().mean()
    print(f"ε = {run.epsilon:.3f}, {right:.1%} of 1000 new records; verified: {dpsrm.verify(run.folder.path).ok}")
