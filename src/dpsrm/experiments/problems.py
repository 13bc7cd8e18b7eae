"""What an experiment is about: the one interface of all problems, and what is publicly known about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.tracking import Track, silent
from dpsrm.data import Records, SparseRecords
from dpsrm.data.public import public_files
from dpsrm.experiments.images import load_images, prepare_images
from dpsrm.experiments.logistic import load_logistic
from dpsrm.experiments.rate_problems import PREFIX, load_rate_problem
from dpsrm.gradients import PerExampleLoss


class Problem(Protocol):
    """Records to train on, where training starts, and what is measured."""

    @property
    def train(self) -> Records:
        """The records to train on."""
        ...

    @property
    def rows(self) -> Records | SparseRecords:
        """The same in the form that is read fastest: public data may decide its own form."""
        ...

    @property
    def regulariser(self) -> float:
        """λ of the data-independent penalty λ·Σθ²/(1+θ²)."""
        ...

    @property
    def facts(self) -> Mapping[str, str | float]:
        """What else the outcome depends on, kept with every trial."""
        ...

    def validation(self) -> Problem:
        """A problem made of the training records alone: some are measured on, the others train."""
        ...

    def loss_of(self, model: str) -> PerExampleLoss:
        """What the named model is trained with: one loss per example."""
        ...

    def start(self, model: str, seed: int) -> nn.Module:
        """The module of the named model where the trial `seed` starts."""
        ...

    def progress(self, model: str, theta_P: Tensor) -> tuple[float, float]:
        """Two numbers for the figures."""
        ...

    def measures(self, model: str, theta_P: Tensor) -> dict[str, float]:
        """Everything the tables report about one θ; not a number where θ is not."""
        ...


@dataclass(frozen=True, kw_only=True)
class About:
    """Public facts about a problem and how its experiments are run.

    Args:
        records: how many records the training set has.
        epsilons: the paper's budgets.
        models: the models that have rows of their own.
        criterion: the measure that decides: of the search, the order of rows, and the comparison with the paper.
        tuned_under: the sampling under which settings are searched.
        also: what else the same settings run under: other values of a recipe's fields.
        papers_noise: whether the paper's settings also run under the paper's own noise formula.
        halved: whether DP-SGD also runs at half the step that its search found.
        trials_per_job: trials made, and kept, together.
        points: points of a trial's curve.
        averaged: keep, instead of the curve, the mean of its last number from the start on.
    """

    records: int
    epsilons: tuple[float, ...]
    models: tuple[str, ...] = ("",)
    criterion: str = "test_objective"
    tuned_under: str = "wor"
    also: Mapping[str, str] = field(default_factory=lambda: {"sampling": "poisson"})
    papers_noise: bool = True
    halved: bool = False
    trials_per_job: int = 10
    points: int = 20
    averaged: bool = False

    @property
    def images(self) -> bool:
        """Whether it is one of the paper's convolutional networks."""
        return self.criterion == "test_error"


def _images(records: int, epsilons: tuple[float, ...], network: str, *others: str) -> About:
    """Facts about a problem of images; `others`: models besides the network with ReLU and with tanh."""
    return About(
        records=records,
        epsilons=epsilons,
        models=(f"{network} relu", f"{network} tanh", *others),
        criterion="test_error",
        tuned_under="poisson",
        also={"sampling": "wor"},
        papers_noise=False,
        trials_per_job=1,
        points=8,
    )


def _features(records: int, kind: str = "scattering") -> About:
    """Facts about a linear model on features of images: under Poisson sampling, and both adjacencies."""
    about = _images(records, (1.0, 3.0), "")
    return replace(about, models=(f"{kind}, linear",), also={"adjacency": "add-remove"}, points=4)


ABOUT: dict[str, About] = {
    "a9a": About(records=32561, epsilons=(0.2, 0.5)),
    "ijcnn1": About(records=49990, epsilons=(0.2, 0.5)),
    "mnist": _images(60000, (1.2, 3.0, 7.0), "CNN4", "CNN4 relu, He", "CNN4 relu, smoothed"),
    "cifar10-cnn5": _images(50000, (6.0, 8.0, 10.0), "CNN5"),
    "cifar10-cnn6": replace(_images(50000, (2.0, 4.0, 8.0), "CNN6"), halved=True),
    "features-mnist": _features(60000),
    "features-fashion-mnist": _features(60000),
    "features-cifar10": _features(50000, "scattering-photos"),
}
"""By the problem's name."""


def about_problem(name: str) -> About:
    """What is known about the problem `name`; the problems of the measured rates are as many as sizes asked for."""
    if name.startswith(PREFIX):
        n = int(name.rsplit("-", 1)[1])
        return About(records=n, epsilons=(), criterion="gradient_norm", trials_per_job=2, points=50, averaged=True)
    need(
        name in ABOUT,
        f"the problem must be one of {', '.join(ABOUT)}",
        problem=name,
        remedy="reproduce takes features, rates, accountants and does-it-help, too",
    )
    return ABOUT[name]


def prepare_problem(name: str, folder: Path, track: Track) -> str:
    """Download and compute, once, what is not in the data folder yet; the digest of a pretrained trunk, or nothing."""
    if ABOUT[name].images:
        return prepare_images(name, folder, track=track)
    public_files(name, folder)
    return ""


def load_problem(name: str, folder: Path, track: Track = silent) -> Problem:
    """The problem `name` from the data folder; `track` shows the progress of what has to be computed once."""
    if name.startswith(PREFIX):
        return load_rate_problem(name, folder)
    if about_problem(name).images:
        return load_images(name, folder, track=track)
    return load_logistic(name, folder)
