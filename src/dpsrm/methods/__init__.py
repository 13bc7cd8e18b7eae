"""Optimisation methods: one algorithm, one file; everything in them is post-processing of releases."""

from dpsrm.core.errors import need
from dpsrm.methods.method import Ask, Method, Schedule, Stage, Walk
from dpsrm.methods.outputs import OUTPUTS, Output, make_output
from dpsrm.methods.srm import Srm
from dpsrm.methods.steps import (
    AdaptiveStep,
    ConstantStep,
    NonconvexPenalty,
    OptimizerStep,
    Regularised,
    Stepper,
)
from dpsrm.methods.theory import Assumptions, TheoryPlan, plan_theory

METHODS: dict[str, type[Method]] = {Srm.name: Srm}


def method_class(name: str) -> type[Method]:
    """The settings class of the method called `name`."""
    need(name in METHODS, f"the method must be one of {', '.join(METHODS)}", method=name)
    return METHODS[name]


__all__ = [
    "METHODS",
    "OUTPUTS",
    "AdaptiveStep",
    "Ask",
    "Assumptions",
    "ConstantStep",
    "Method",
    "NonconvexPenalty",
    "OptimizerStep",
    "Output",
    "Regularised",
    "Schedule",
    "Srm",
    "Stage",
    "Stepper",
    "TheoryPlan",
    "Walk",
    "make_output",
    "method_class",
    "plan_theory",
]
