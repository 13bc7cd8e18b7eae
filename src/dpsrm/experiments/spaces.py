"""What tuning may try for each row of the table: lists of values in order, so that neighbours can be tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpsrm.experiments.recipes import Recipe

Point = Mapping[str, int]
"""Which value of each axis: its place in the axis's list."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The settings of one row that may vary; each is a list, from small to large.

    `model` is the one the row is about; `first` is where a short search begins, at the smallest ε (None: at random);
    `at_rank` says where else at the ε of some rank; with `rate_per_clip` learning rates stand for their products with
    C1; `as_papers` sets C2 = γ and takes `first_batch` as a multiple of the batch, as in the paper's experiments on
    images.
    """

    label: str
    method: str
    settings: Mapping[str, list[Any]] = field(default_factory=dict)
    training: Mapping[str, list[Any]] = field(default_factory=dict)
    private: bool = True
    model: str = ""
    first: Point | None = None
    at_rank: Mapping[int, Point] = field(default_factory=dict)
    as_papers: bool = False
    rate_per_clip: bool = False

    def draw(self, stream: np.random.Generator) -> Point:
        """A random point."""
        return {name: int(stream.integers(len(values))) for name, values in self._axes().items()}

    def begin(self, rank: int) -> Point | None:
        """Where a short search begins at the ε of this rank: the larger ε is, the larger the learning rate."""
        if self.first is None:
            return None
        last = len(self.training["learning_rate"]) - 1
        rate = min(self.first["learning_rate"] + rank, last) if self.private else self.first["learning_rate"]
        begun = {**dict.fromkeys(self._axes(), 0), **self.first, "learning_rate": rate}
        return {**begun, **self.at_rank.get(rank, {})}

    def neighbour(self, point: Point, stream: np.random.Generator) -> Point:
        """A random point one step away along one axis or two."""
        axes = {name: values for name, values in self._axes().items() if len(values) > 1}
        names = stream.permutation(list(axes))[: int(stream.integers(1, 3))]
        moved = dict(point)
        for name in map(str, names):
            step = 1 if stream.random() < 0.5 else -1
            inside = 0 <= point[name] + step < len(axes[name])
            moved[name] = point[name] + (step if inside else -step)
        return moved

    def recipe(self, point: Point, *, epsilon: float | None, sampling: str) -> Recipe:
        """The recipe at a point; `max_diff_norm` and `joint_norm` stand for their ratios to C1."""
        settings = {name: values[point[name]] for name, values in self.settings.items()}
        for name in ("max_diff_norm", "joint_norm"):
            if name in settings:
                settings[name] *= settings["max_grad_norm"]
        training = {name: values[point[name]] for name, values in self.training.items()}
        if self.rate_per_clip:
            training["learning_rate"] /= settings["max_grad_norm"]
        if self.as_papers:
            settings["max_diff_norm"] = settings["gamma"]
            training["first_batch"] *= training["batch"]
        return Recipe(
            label=self.label,
            method=self.method,
            settings=settings,
            training=training,
            epsilon=epsilon if self.private else None,
            sampling=sampling,
            model=self.model,
        )

    def _axes(self) -> dict[str, list[Any]]:
        """All axes; no name is used twice."""
        return {**self.settings, **self.training}


_CLIPS = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
_RATES = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
_STOCHASTIC: dict[str, list[Any]] = {
    "batch": [250, 500, 1000, 2000, 4000],
    "epochs": [2.0, 4.0, 8.0, 16.0, 32.0],
    "learning_rate": _RATES,
}

SPACES: tuple[Space, ...] = (
    Space(
        label="STORM (non-private)",
        method="storm",
        settings={"gamma": [0.05, 0.1, 0.3, 0.5]},
        training=_STOCHASTIC,
        private=False,
    ),
    Space(label="SGD (non-private)", method="sgd", training=_STOCHASTIC, private=False),
    Space(label="DP-SGD", method="sgd", settings={"max_grad_norm": _CLIPS}, training=_STOCHASTIC),
    Space(
        label="DP-SGD momentum",
        method="sgd",
        settings={"max_grad_norm": _CLIPS, "momentum": [0.3, 0.5, 0.8, 0.9, 0.95]},
        training=_STOCHASTIC,
    ),
    Space(
        label="DP-GD",
        method="gd",
        settings={"max_grad_norm": _CLIPS},
        training={"steps": [20, 50, 100, 200, 400, 800], "learning_rate": _RATES},
    ),
    Space(
        label="DP-AGD",
        method="agd",
        settings={"max_grad_norm": _CLIPS, "max_loss": [1.0, 2.0, 3.0], "candidates": [5, 10, 20]},
        training={"steps": [10, 20, 40], "learning_rate": _RATES},
    ),
    Space(
        label="RRPSGD",
        method="rrpsgd",
        settings={"max_grad_norm": _CLIPS},
        training={
            "steps": [10_000, 30_000, 100_000],
            "learning_rate": [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2],
        },
    ),
    Space(
        label="DP-SRM, paper's settings",
        method="srm",
        settings={"max_grad_norm": [1.0], "max_diff_norm": [0.01], "gamma": [0.01]},
        training={
            "batch": [50, 100, 200],
            "epochs": [4.0, 5.0],
            "learning_rate": [0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2],
            "output": ["last", "tail"],
        },
    ),
    Space(
        label="DP-SRM",
        method="srm",
        settings={"max_grad_norm": _CLIPS, "max_diff_norm": [0.05, 0.1, 0.25, 0.5, 0.75, 0.9]},
        training=_STOCHASTIC,
    ),
    Space(
        label="DP-SRM relative",
        method="srm",
        settings={
            "max_grad_norm": _CLIPS,
            "max_diff_norm": [0.25, 0.5, 1.0],
            "gamma": [0.1, 0.3, 0.5, 0.7, 0.9],
            "relative": [0.25, 0.5, 1.0, 2.0],
        },
        training=_STOCHASTIC,
    ),
    Space(
        label="DP-SRM joint",
        method="srm",
        settings={
            "max_grad_norm": _CLIPS,
            "joint_norm": [0.3, 0.5, 0.7, 1.0],
            "gamma": [0.3, 0.5, 0.7, 0.9],
        },
        training=_STOCHASTIC,
    ),
    Space(
        label="DiSK",
        method="disk",
        settings={"max_grad_norm": _CLIPS, "kappa": [0.3, 0.5, 0.7, 0.9], "lookahead": [-1.0, 0.5, 1.0]},
        training=_STOCHASTIC,
    ),
    Space(
        label="SPIDER",
        method="spider",
        settings={"max_grad_norm": _CLIPS, "smoothness": [0.5, 1.0, 2.0], "period": [5, 10, 20]},
        training={**_STOCHASTIC, "first_batch": [4000]},
    ),
)
"""Every row that is tuned, each with the same number of tries."""
