"""What tuning may try for the rows of the image tables: few values around settings that worked in first tries.

All private rows share the grids of clip, batch, epochs and learning rate, with the rate falling linearly to zero and
the last iterate handed out; each method has its own few settings besides. The paper's own row has the paper's grids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.spaces import Space

Axes = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """The grids of one problem; `first` is where each search begins, as a place in each list.

    `first_relu`: other places for the network with ReLU. `at_largest`: others at the largest ε, for models named so.
    `adam_rates` and `plain_rates`: DP-Adam's and non-private SGD's own, begun at the second and the third.
    """

    clips: list[float]
    schedule: Axes
    first: dict[str, int]
    first_relu: dict[str, int] = field(default_factory=dict)
    at_largest: dict[str, dict[str, int]] = field(default_factory=dict)
    paper: Axes = field(default_factory=dict)
    papers_clip: float = 0.0
    papers_gammas: list[float] = field(default_factory=list)
    rate_per_clip: bool = False
    adam_rates: list[float] = field(default_factory=lambda: [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016])
    plain_rates: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.2, 0.4, 0.8])


_FALLING: Axes = {"decay": ["linear"], "output": ["last"]}
_RATES = [1.25, 1.75, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0]
_GAMMAS = [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]

_GRIDS: dict[str, _Grid] = {
    "mnist": _Grid(
        clips=[0.25, 0.5, 1.0],
        schedule={"batch": [512, 1024, 2048], "epochs": [5.0, 10.0, 20.0], "learning_rate": _RATES},
        first={"max_grad_norm": 1, "batch": 1, "epochs": 1, "learning_rate": 5},
        first_relu={"learning_rate": 4, "gamma": 3},
        at_largest={model: {"epochs": 2, "learning_rate": 5} for model in ("CNN4 relu, He", "CNN4 relu, smoothed")},
        paper={"batch": [256, 512, 1024], "learning_rate": [0.01, 0.05, 0.1, 0.25, 0.5], "epochs": [5.0, 10.0, 20.0]},
        papers_clip=1.5,
        papers_gammas=_GAMMAS,
    ),
    "cifar10-cnn5": _Grid(
        clips=[0.5, 1.0, 2.0],
        schedule={
            "batch": [1024, 2048, 4096],
            "epochs": [10.0, 20.0, 40.0],
            "learning_rate": [3.5, 4.2, 5.0, 6.0, 7.0],
        },
        first={"max_grad_norm": 1, "batch": 1, "epochs": 1, "learning_rate": 1},
        paper={"batch": [32, 64, 128], "learning_rate": [0.01, 0.02, 0.05, 0.1, 0.2], "epochs": [10.0, 20.0, 40.0]},
        papers_clip=2.0,
        papers_gammas=_GAMMAS,
    ),
    "cifar10-cnn6": _Grid(
        clips=[0.5, 1.0, 2.0],
        schedule={"batch": [512, 1024, 2048], "epochs": [5.0, 10.0, 20.0], "learning_rate": _RATES},
        first={"max_grad_norm": 1, "batch": 1, "epochs": 1, "learning_rate": 4},
        paper={
            "batch": [64, 128, 256],
            "learning_rate": [0.01, 0.02, 0.05, 0.1, 0.15, 0.2],
            "epochs": [5.0, 10.0, 20.0, 40.0],
        },
        papers_clip=2.0,
        papers_gammas=[0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99],
    ),
}

_FEATURES = _Grid(
    clips=[0.004, 0.02, 0.1, 0.5],
    schedule={
        "batch": [1024, 2048, 4096],
        "epochs": [5.0, 10.0, 20.0],
        "learning_rate": [75.0, 150.0, 300.0, 600.0, 1200.0],
    },
    first={"max_grad_norm": 1, "batch": 1, "epochs": 1, "learning_rate": 2},
    rate_per_clip=True,
    adam_rates=[0.025, 0.05, 0.1, 0.2, 0.4],
    plain_rates=[50.0, 100.0, 200.0, 400.0, 800.0],
)
"""For a linear model on records of length 1: where the gradients of most are small, only large rates come far."""

_WIDE_FEATURES = replace(
    _FEATURES,
    schedule={
        "batch": [4096, 8192, 16384],
        "epochs": [20.0, 40.0, 80.0],
        "learning_rate": [150.0, 300.0, 450.0, 600.0, 900.0],
    },
    first={"max_grad_norm": 1, "batch": 1, "epochs": 1, "learning_rate": 1},
)
"""For CIFAR-10, whose classes are harder to tell apart: longer, with larger batches."""

_OWN: dict[str, tuple[str, Axes, dict[str, int]]] = {
    "DP-SGD": ("sgd", {}, {}),
    "DP-SGD momentum": ("sgd", {"momentum": [0.3, 0.5, 0.7, 0.9]}, {"momentum": 1}),
    "DP-SRM": (
        "srm",
        {"max_diff_norm": [0.025, 0.05, 0.1, 0.25], "gamma": [0.3, 0.5, 0.7, 0.9]},
        {"max_diff_norm": 1, "gamma": 1},
    ),
    "DP-SRM relative": (
        "srm",
        {"max_diff_norm": [0.1, 0.25, 0.5], "gamma": [0.3, 0.5, 0.7, 0.9], "relative": [0.05, 0.1, 0.25, 0.5, 1.0]},
        {"max_diff_norm": 1, "gamma": 1, "relative": 2},
    ),
    "DP-SRM joint": (
        "srm",
        {"joint_norm": [0.3, 0.4, 0.5, 0.6, 0.7], "gamma": [0.3, 0.5, 0.7, 0.9]},
        {"joint_norm": 2, "gamma": 1},
    ),
    "DiSK": (
        "disk",
        {"kappa": [0.3, 0.5, 0.7, 0.9], "lookahead": [-1.0, 0.5, 1.0]},
        {"kappa": 2, "lookahead": 1},
    ),
}
"""By label: the method, its own settings (C2 and the joint clip as ratios to C1), and where the search begins."""


def image_spaces(problem: str, model: str) -> tuple[Space, ...]:
    """Every row of one model that is tuned, each with the same number of tries."""
    if model not in ABOUT[problem].models:
        raise AssertionError(model)
    grid = _GRIDS.get(problem, _WIDE_FEATURES if problem == "features-cifar10" else _FEATURES)
    other = grid.first_relu if "relu" in model else {}
    private = [
        Space(
            label=label,
            method=method,
            settings={"max_grad_norm": grid.clips, **own},
            training={**grid.schedule, **_FALLING},
            model=model,
            first={name: other.get(name, at) for name, at in {**grid.first, **first}.items()},
            at_rank={len(ABOUT[problem].epsilons) - 1: grid.at_largest.get(model, {})},
            rate_per_clip=grid.rate_per_clip,
        )
        for label, (method, own, first) in _OWN.items()
    ]
    papers = (_papers(grid, model),) if grid.paper else ()
    return (_plain(grid, model), *private, _adam(grid, model), *papers)


def _plain(grid: _Grid, model: str) -> Space:
    """SGD with momentum, without privacy."""
    return Space(
        label="SGD (non-private)",
        method="sgd",
        settings={"momentum": [0.9]},
        training={
            "batch": [128, 256],
            "epochs": grid.schedule["epochs"],
            "learning_rate": grid.plain_rates,
            **_FALLING,
        },
        private=False,
        model=model,
        first={"epochs": 1, "learning_rate": 2},
    )


def _adam(grid: _Grid, model: str) -> Space:
    """Adam on the released gradients, corrected for their noise."""
    return Space(
        label="DP-Adam",
        method="sgd",
        settings={"max_grad_norm": grid.clips},
        training={**grid.schedule, **_FALLING, "learning_rate": grid.adam_rates, "optimizer": ["dp-adam"]},
        model=model,
        first={**grid.first, "learning_rate": 1},
    )


def _papers(grid: _Grid, model: str) -> Space:
    """DP-SRM with the paper's C1, γ = C2, and grids; it does not say how long it trains."""
    return Space(
        label="DP-SRM, paper's settings",
        method="srm",
        settings={"max_grad_norm": [grid.papers_clip], "gamma": grid.papers_gammas},
        training={**grid.paper, "first_batch": [1, 2, 4], "output": ["last"]},
        model=model,
        first={"gamma": 3, "batch": 2, "learning_rate": len(grid.paper["learning_rate"]) - 1, "epochs": 1},
        as_papers=True,
    )
