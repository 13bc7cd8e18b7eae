"""Black box, many runs: one canary, a coin for its label in every run, and the finished model's losses.

Shapes: R runs.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.audit.bounds import curve, epsilon_at, error_bound, least_refuted
from dpsrm.audit.prove import quiet
from dpsrm.core.errors import need
from dpsrm.core.secret import Streams
from dpsrm.gradients import Layout, PerExampleLoss
from dpsrm.training import Plan, Settings, run_trials

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RepeatedBlackBox:
    """Scores of one canary over R runs, its coins, and the bound that half of the runs prove at 95 %."""

    plan: Plan
    scores: Array
    signs_m: npt.NDArray[np.int64]
    epsilon: float
    seconds: float


def repeated_black_box(
    model: nn.Module,
    loss: PerExampleLoss,
    data: tuple[Tensor, Tensor],
    settings: Settings,
    *,
    runs: int,
) -> RepeatedBlackBox:
    """Train `runs` times on the same records, of which the first has one or another label, and guess which.

    Args:
        data: inputs and targets of two classes (0 and 1): the two labels then pull in opposite directions.
        settings: their seed is replaced; the attacker sees the finished model only, and the public first one.

    Guarantee: ε, at 95 %, by Clopper–Pearson on half of the runs; the threshold is chosen on the other half.
    """
    inputs, targets = data
    need(set(targets.tolist()) <= {0, 1}, "a repeated black-box audit is for two classes")
    need(settings.privacy is not None and runs >= 100, "it needs a budget, and at least 100 runs", runs=runs)
    start, coins = time.monotonic(), Streams.seeded(11).output.integers(0, 2, runs)
    module, layout = copy.deepcopy(model), Layout.of(model)
    before, scores, plan = _score(module, loss, inputs[:1]), np.zeros(runs), None
    with quiet():
        for run, coin in enumerate(coins):
            labels = torch.cat([torch.tensor([coin]), targets[1:]])
            (done,) = run_trials(model, loss, (inputs, labels), [replace(settings, seed=1000 + run)])
            layout.write(module, done.theta)
            scores[run], plan = _score(module, loss, inputs[:1]) - before, done.plan
    assert plan is not None
    signs_m = 2 * coins - 1
    epsilon = _bound(plan, scores, signs_m)
    return RepeatedBlackBox(
        plan=plan, scores=scores, signs_m=signs_m, epsilon=epsilon, seconds=time.monotonic() - start
    )


@torch.no_grad()
def _score(module: nn.Module, loss: PerExampleLoss, x: Tensor) -> float:
    """The loss under label 0 less that under label 1."""
    outputs = module(x)
    return float(loss(outputs, torch.tensor([0])) - loss(outputs, torch.tensor([1])))


def _bound(plan: Plan, scores: Array, signs_m: npt.NDArray[np.int64]) -> float:
    """The largest ε whose curve the second half of the runs refutes, with the first half's best threshold."""
    half = len(scores) // 2
    candidates = np.quantile(scores[:half], np.linspace(0.02, 0.98, 49))
    threshold = max(candidates, key=lambda t: _epsilon(plan, scores[:half], signs_m[:half], float(t)))
    return _epsilon(plan, scores[half:], signs_m[half:], float(threshold))


def _epsilon(plan: Plan, scores: Array, signs_m: npt.NDArray[np.int64], threshold: float) -> float:
    """The largest ε refuted at a threshold: of both kinds of error, an upper bound at 97.5 %."""
    plus, minus = scores[signs_m == 1], scores[signs_m == -1]
    missed, false = int((plus <= threshold).sum()), int((minus > threshold).sum())
    fnr, fpr = error_bound(missed, len(plus), 0.025), error_bound(false, len(minus), 0.025)
    points = (1 - fnr, fpr), (1 - fpr, fnr)  # true positives at false positives: more than the plan's curve allows?
    return epsilon_at(plan, least_refuted(lambda louder: any(curve(plan, louder)(y) > x for y, x in points)))
