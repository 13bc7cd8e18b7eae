"""The measured rates: DP-SRM, DP-GD and RRPSGD with their theorems' parameters, on problems of known constants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from dpsrm.experiments.lab import Lab
from dpsrm.experiments.rate_problems import LIPSCHITZ, SMOOTHNESS, assumptions, problem_name
from dpsrm.experiments.recipes import DELTA, Recipe
from dpsrm.experiments.runner import Job, missing
from dpsrm.methods import plan_theory
from dpsrm.methods.rates import Rate, gd_rate, rrpsgd_rate

ZETA_FACTOR = 3.0
"""The constant of ζ, the same for every n. Six would make the proof's bound smallest, but with it the paper's noise is
too small for a9a at the least n: `pld` proves ε = 8.7 instead of 4 there (Lemma 1's σ'² ≥ 0.7 fails, too)."""

PAPERS, TIGHT = "paper's noise", "tight noise"
SRM, GD, RRPSGD, PRACTICE = "DP-SRM", "DP-GD", "RRPSGD", "DP-SRM in practice"
EXPONENTS = {SRM: -2 / 3, GD: -1 / 2, RRPSGD: -1 / 2}
"""What the theorems promise."""


@dataclass(frozen=True)
class Case:
    """One problem at one budget, and the sizes at which each algorithm runs on it."""

    data: str
    dimension: int
    epsilon: float
    sizes: dict[str, tuple[int, ...]]

    @property
    def title(self) -> str:
        """How tables and figures call it."""
        return f"{self.data}, d = {self.dimension}, ε = {self.epsilon:g}"


def _doubled(first: int, count: int) -> tuple[int, ...]:
    """`count` sizes, each twice the one before."""
    return tuple(first * 2**k for k in range(count))


def _case(data: str, dimension: int, epsilon: float, sizes: tuple[int, ...], **further: tuple[int, ...]) -> Case:
    """A case whose algorithms all run at `sizes`, or at those named."""
    return Case(data, dimension, epsilon, {SRM: sizes, GD: sizes, PRACTICE: sizes} | further)


CASES = (
    _case("made", 10, 1.0, _doubled(625, 7), **{RRPSGD: _doubled(10, 7)}),
    _case("made", 10, 4.0, _doubled(625, 6)),
    _case("made", 50, 4.0, _doubled(625, 6)),
    _case("a9a", 123, 4.0, (508, 1017, 2035, 4070, 8140, 16280, 32561)),
)
"""Six sizes or more over one and a half decades; DP-SRM's least n is where its γ is just below 1.
RRPSGD makes up to n² rounds, so its n are small."""

SINGLE_NOISE = {
    10: 4.11437196,
    20: 4.11766594,
    40: 4.12382323,
    80: 4.12828552,
    160: 4.13089392,
    320: 4.13229621,
    640: 4.13302239,
}
"""By n: what `pld` calibrates for n² releases of one example each at ε = 1, δ = 1e-5. Kept here so that the recipes, by
which results are found again, do not depend on the last digits of a calibration."""


@dataclass(frozen=True)
class Series:
    """One algorithm under one noise on one case: a line of the figure."""

    case: Case
    algorithm: str
    noise_kind: str

    @property
    def measure(self) -> str:
        """What is fitted: the mean over the iterates, or for RRPSGD, whose last round is the random one, the output."""
        return "path_norm" if self.algorithm in EXPONENTS and self.algorithm != RRPSGD else "gradient_norm"

    @property
    def points(self) -> Iterator[tuple[int, str, Recipe]]:
        """For every n: the problem's name and the recipe."""
        for n in self.case.sizes[self.algorithm]:
            yield n, problem_name(self.case.data, self.case.dimension, n), recipe(self, n)


def all_series() -> list[Series]:
    """Every line of the figure."""
    lines = [(case, name) for case in CASES for name in case.sizes]
    noises = {PRACTICE: (TIGHT,)}
    return [Series(case, name, noise) for case, name in lines for noise in noises.get(name, (PAPERS, TIGHT))]


def recipe(series: Series, n: int) -> Recipe:
    """The theorem's parameters for n records under the paper's noise, or the same under the tight accountant's."""
    case, papers = series.case, series.noise_kind == PAPERS
    a = assumptions(case.dimension, n, epsilon=case.epsilon, delta=DELTA)
    facts: dict[str, Any] = {"label": f"{series.algorithm}, {series.noise_kind}", "epsilon": case.epsilon}
    if series.algorithm == SRM:
        plan = plan_theory(a, zeta_factor=ZETA_FACTOR)
        training = {"steps": plan.steps, "batch": plan.batch, "first_batch": plan.first_batch, "output": "random"}
        theory = {"lipschitz": LIPSCHITZ, "smoothness": SMOOTHNESS, "zeta": _short(plan.zeta), "n0": _short(plan.n0)}
        return Recipe(method="srm", training=training, theory=theory | ({"beta": 0.5} if papers else {}), **facts)
    if series.algorithm == PRACTICE:
        return Recipe(method="srm", training={"epochs": 10.0, "learning_rate": 2.0}, **facts)
    if series.algorithm == GD:
        rate = gd_rate(a)
        noise, output = _short(rate.noise_multiplier) if papers else None, "random"
        return Recipe(method="gd", training=_constant_step(rate) | {"output": output}, noise_multiplier=noise, **facts)
    if series.algorithm == RRPSGD:
        rate = rrpsgd_rate(a, noise_multiplier=None if papers else SINGLE_NOISE[n])
        noise = _short(rate.noise_multiplier)
        return Recipe(method="rrpsgd", training=_constant_step(rate), noise_multiplier=noise, **facts)
    raise AssertionError(series.algorithm)


def _constant_step(rate: Rate) -> dict[str, Any]:
    """Steps and step size of a theorem."""
    return {"steps": rate.steps, "learning_rate": _short(rate.learning_rate or math.nan)}


def _short(value: float) -> float:
    """Nine digits: all that matters, and the same on every machine."""
    return float(f"{value:.9g}")


def missing_jobs(lab: Lab, series: Sequence[Series], trials: int) -> list[Job]:
    """The trials that are not in the results yet, the small problems first."""
    points = sorted((point for each in series for point in each.points), key=lambda point: point[0])
    jobs = (missing(lab, name, [one], range(trials), validation=False) for _, name, one in points)
    return [job for found in jobs for job in found]


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A fitted exponent with its 95 % interval (Student's t, over the sizes), and what was measured.

    `large` is the exponent over the larger half of the sizes alone.
    """

    series: Series
    sizes: tuple[int, ...]
    means: tuple[float, ...]
    outputs: tuple[float, ...]
    epsilons: tuple[float, ...]
    gradients: tuple[float, ...]
    trials: int
    exponent: float
    half_width: float
    large: float

    @property
    def seen(self) -> str:
        """Whether the theorem's exponent lies in the interval."""
        promised = EXPONENTS.get(self.series.algorithm)
        if promised is None:
            return ""
        if abs(self.exponent - promised) <= self.half_width:
            return "yes"
        return "faster" if self.exponent < promised else "no, slower"


def measured(lab: Lab, series: Series) -> Slope | None:
    """The slope of log E‖∇F‖ against log n; None if fewer than three sizes have trials."""
    found = [(n, lab.read(name, one)) for n, name, one in series.points]
    found = [(n, trials) for n, trials in found if trials]
    if len(found) < 3:
        return None
    sizes = tuple(n for n, _ in found)
    means = tuple(_mean(trials, series.measure) for _, trials in found)
    fit = stats.linregress(np.log(sizes), np.log(means))
    half = len(sizes) // 2
    return Slope(
        series=series,
        sizes=sizes,
        means=means,
        outputs=tuple(_mean(trials, "gradient_norm") for _, trials in found),
        epsilons=tuple(max(trial["epsilon_proved"] for trial in trials) for _, trials in found),
        gradients=tuple(_mean(trials, "gradients") for _, trials in found),
        trials=min(len(trials) for _, trials in found),
        exponent=float(fit.slope),
        half_width=float(stats.t.ppf(0.975, len(sizes) - 2) * fit.stderr),
        large=float(stats.linregress(np.log(sizes[half:]), np.log(means[half:])).slope),
    )


def _mean(trials: Sequence[dict[str, Any]], name: str) -> float:
    """The mean of a measure over trials."""
    return float(np.mean([trial[name] for trial in trials]))
