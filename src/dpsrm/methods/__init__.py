"""Optimisation methods: one algorithm, one file; everything in them is post-processing of releases."""

from dpsrm.core.errors import need
from dpsrm.methods.adam import CorrectedAdam
from dpsrm.methods.agd import Agd
from dpsrm.methods.assumptions import Assumptions
from dpsrm.methods.disk import Disk
from dpsrm.methods.gd import Gd, exact_noise
from dpsrm.methods.method import Ask, Choice, DirectionWalk, Method, Schedule, Stage, Walk
from dpsrm.methods.postprocessing import OUTPUTS, ConstantStep, Output, Stepper, make_output
from dpsrm.methods.rrpsgd import Rrpsgd, papers_noise
from dpsrm.methods.schedules import DECAYS, RateSchedule, Scheduled
from dpsrm.methods.sgd import Sgd
from dpsrm.methods.spider import Spider
from dpsrm.methods.srm import Srm
from dpsrm.methods.steps import AdaptiveStep, NonconvexPenalty, OptimizerStep, PenalisedStep, Regularised, penalised
from dpsrm.methods.storm import Storm
from dpsrm.methods.theorem_noise import TheoremNoise, best_theorem_noise, corollary_beta, corollary_steps, theorem_noise
from dpsrm.methods.theory import Theory, TheoryPlan, plan_theory

METHODS: dict[str, type[Method]] = {each.name: each for each in (Srm, Sgd, Gd, Agd, Rrpsgd, Disk, Spider, Storm)}
"""Every method, by name: what the command line, configs, experiments and docs list."""


def method_class(name: str) -> type[Method]:
    """The settings class of the method called `name`."""
    need(name in METHODS, f"the method must be one of {', '.join(METHODS)}", method=name)
    return METHODS[name]


__all__ = [
    "DECAYS",
    "METHODS",
    "OUTPUTS",
    "AdaptiveStep",
    "Agd",
    "Ask",
    "Assumptions",
    "Choice",
    "ConstantStep",
    "CorrectedAdam",
    "DirectionWalk",
    "Disk",
    "Gd",
    "Method",
    "NonconvexPenalty",
    "OptimizerStep",
    "Output",
    "PenalisedStep",
    "RateSchedule",
    "Regularised",
    "Rrpsgd",
    "Schedule",
    "Scheduled",
    "Sgd",
    "Spider",
    "Srm",
    "Stage",
    "Stepper",
    "Storm",
    "TheoremNoise",
    "Theory",
    "TheoryPlan",
    "Walk",
    "best_theorem_noise",
    "corollary_beta",
    "corollary_steps",
    "exact_noise",
    "make_output",
    "method_class",
    "papers_noise",
    "penalised",
    "plan_theory",
    "theorem_noise",
]
