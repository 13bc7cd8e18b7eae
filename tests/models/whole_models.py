"""Whole models of the benchmark at tiny size: the objective, its float64 twin, and the questions asked of both."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpsrm.bench.models import build
from dpsrm.core.tree import mapped
from dpsrm.gradients import GhostEngine, LoopEngine, ModelLosses, Objective, Part, Query
from dpsrm.gradients.ghost.rounding import SHIFTING
from dpsrm.gradients.query import MARGIN

DRAWS = {"vae"}
"""Models that draw random numbers: all examples draw the same, so that any engine can be compared with the oracle."""


@dataclass
class Case:
    """A tiny model with a batch; `said` is what the engine reports about parts that no rule covers."""

    name: str
    objective: Objective
    exact: Objective
    batch: Any
    said: list
    engine: GhostEngine | None = None

    @property
    def steady(self):
        return self.name not in DRAWS

    def ghost(self, query, batch=None):
        """Our sum, from a fixed state of the generator."""
        torch.manual_seed(3)
        if self.engine is None:
            self.engine = GhostEngine(self.objective, steady=self.steady, expected=4, notice=self.said.append)
        return self.engine(query, self.batch if batch is None else batch)

    def oracle(self, query, batch=None):
        """The float64 loop's answer to the same question."""
        torch.manual_seed(3)
        asked = Query(points=tuple(point_P.double() for point_P in query.points), parts=query.parts)
        loop = LoopEngine(self.exact, steady=self.steady, margin=MARGIN if self.steady else SHIFTING)
        return loop(asked, doubled(self.batch if batch is None else batch))

    def query(self, kind, *, clip=1.0):
        """One point; or two, near (1e-4 apart) or far (1 apart), with DP-SRM's parts."""
        here_P = self.objective.layout.read(self.objective.module)
        if kind == "one":
            return Query(points=(here_P,), parts=(Part(coefficients=(1.0,), clip=clip),))
        step_P = torch.randn(len(here_P), generator=torch.Generator().manual_seed(5))
        distance = {"near": 1e-4, "far": 1.0}[kind]
        parts = (
            Part(coefficients=(1.0, -1.0), clip=clip * distance, weight=0.7, name="difference"),
            Part(coefficients=(1.0, 0.0), clip=clip, weight=0.3),
        )
        return Query(points=(here_P, here_P + distance * step_P / step_P.norm()), parts=parts)


def doubled(batch):
    """The batch with its numbers in float64."""
    return mapped(lambda t: t.double() if t.is_floating_point() else t, batch)


def case(name: str, count: int = 4) -> Case:
    """The tiny model `name` with `count` examples."""
    with torch.random.fork_rng():
        made = build(name, count, tiny=True)
    exact = Objective.of(copy.deepcopy(made.module).double(), ModelLosses(made.losses))
    return Case(name, Objective.of(made.module, ModelLosses(made.losses)), exact, made.batch, [])


def relative_error(found_P: Tensor, expected_P: Tensor) -> float:
    """‖found − expected‖ ÷ ‖expected‖."""
    return float((found_P - expected_P).norm() / expected_P.norm().clamp_min(1e-30))


def route(said: list[str]) -> str:
    """How the engine ran the model, from what it reported."""
    return "fallback to torch.func" if said else "native"
