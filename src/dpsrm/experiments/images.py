"""The paper's second problem: convolutional networks on MNIST and CIFAR-10.

Pixels are scaled by public constants; CNN6's images are replaced once by the features of its frozen convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpsrm.core.tracking import Track
from dpsrm.data import ImageFeatures, Records
from dpsrm.data.images import read_cifar, read_idx_pair, scaled
from dpsrm.data.public import image_files
from dpsrm.experiments.held_out import held_out
from dpsrm.experiments.networks import ACTIVATIONS, cnn4, cnn5, cnn6_head, he_start, seeded
from dpsrm.experiments.pretraining import CIFAR_PIXELS, features, features_file, trunk
from dpsrm.gradients import Layout, PerExampleLoss, multiclass_loss

MNIST_PIXELS = {"centre": 0.5, "spread": 0.5}
"""Public constants: from bytes to numbers between −1 and 1."""
FEATURE_SETS = {
    "features-mnist": ("mnist", "scattering"),
    "features-fashion-mnist": ("fashion-mnist", "scattering"),
    "features-cifar10": ("cifar-10", "scattering-photos"),
}
"""Problems on features that nothing private was learned for: their image sets and the features' names."""
SMOOTHED = "CNN4 relu, smoothed"
"""From He's start too, and trained with `smoothed_loss`."""
_PIECE = 250
"""Images measured at once."""

Network = Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Images:
    """Images (or features of them) to train and to measure on, and the networks by their names."""

    name: str
    train: Records
    test: Records
    networks: Mapping[str, Network]
    losses: Mapping[str, PerExampleLoss] = field(default_factory=dict)
    regulariser: float = 0.0
    facts: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def rows(self) -> Records:
        """The records to train on, as they are."""
        return self.train

    def validation(self) -> Images:
        """A problem made of the training records alone: a random fifth is measured on, the others train."""
        train, test = held_out(self.train)
        return replace(self, name=f"{self.name}-validation", train=train, test=test)

    def loss_of(self, model: str) -> PerExampleLoss:
        """Cross-entropy, unless the model is trained with another."""
        return self.losses.get(model, multiclass_loss)

    def start(self, model: str, seed: int) -> nn.Module:
        """The network with a random start of its own for each trial."""
        return seeded(self.networks[model], seed)

    def progress(self, model: str, theta_P: Tensor) -> tuple[float, float]:
        """0/1 error and log-loss on the records to measure on."""
        if not bool(torch.isfinite(theta_P).all()):
            return float("nan"), float("nan")
        module = self.start(model, 0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster
        Layout.of(module).write(module, theta_P)
        with torch.no_grad():
            logits = torch.cat([module(piece).double() for piece in torch.split(self.test.inputs, _PIECE)])
        error = float((logits.argmax(1) != self.test.targets).double().mean())
        return error, float(F.cross_entropy(logits, self.test.targets))

    def measures(self, model: str, theta_P: Tensor) -> dict[str, float]:
        """Everything the tables report about one θ; without a regulariser the objective is the log-loss."""
        error, loss = self.progress(model, theta_P)
        return {"test_objective": loss, "test_log_loss": loss, "test_error": error}


def load_images(name: str, folder: Path, *, track: Track) -> Images:
    """MNIST for CNN4, CIFAR-10 for CNN5, or CNN6's features of CIFAR-10."""
    if name == "mnist":
        pairs = _pixels("mnist", folder)
        train, test = (Records(scaled(pixels, **MNIST_PIXELS), labels) for pixels, labels in pairs)
        networks = {**_networks("CNN4", cnn4), **dict.fromkeys(("CNN4 relu, He", SMOOTHED), _cnn4_he)}
        return Images(name, train, test, networks, losses={SMOOTHED: smoothed_loss})
    if name == "cifar10-cnn5":
        train, test = (
            Records(scaled(pixels, **CIFAR_PIXELS), labels) for pixels, labels in _pixels("cifar-10", folder)
        )
        return Images(name, train, test, _networks("CNN5", cnn5))
    if name == "cifar10-cnn6":
        frozen = trunk(folder, track=track)
        train, test = (
            Records(features(frozen, f"cifar-10-{part}", folder, pixels=pixels, track=track), labels)
            for part, (pixels, labels) in zip(("train", "test"), _pixels("cifar-10", folder), strict=True)
        )
        facts: dict[str, str | float] = {"trunk": frozen.digest, "trunk_accuracy": frozen.accuracy}
        return Images(name, train, test, _networks("CNN6", cnn6_head), facts=facts)
    if name in FEATURE_SETS:
        return _on_features(name, folder, track)
    raise AssertionError(name)


def _on_features(name: str, folder: Path, track: Track) -> Images:
    """Scattering features of an image set, and a linear model without bias: every record has length 1 as it is."""
    images, kind = FEATURE_SETS[name]
    maker = ImageFeatures(kind=kind, cache=folder / "features", track=track)
    train, test = (Records(maker.of(pixels), labels) for pixels, labels in _pixels(images, folder))
    return Images(name, train, test, {f"{kind}, linear": partial(_linear, train.inputs.shape[1])})


def smoothed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with a tenth of the label spread over all classes (Szegedy et al. 2016): it keeps logits small."""
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def _cnn4_he() -> nn.Module:
    """CNN4 with ReLU, from He's start."""
    return he_start(cnn4("relu"))


def _linear(features: int) -> nn.Module:
    """Ten outputs, zero at the start."""
    layer = nn.Linear(features, 10, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def prepare_images(name: str, folder: Path, *, track: Track) -> str:
    """Have everything on disk that `load_images` reads, so that several processes can call it at once.

    Returns the digest of the pretrained trunk that the problem rests on, or nothing.
    """
    if name in FEATURE_SETS:
        load_images(name, folder, track=track)
        return ""
    image_files("mnist" if name == "mnist" else "cifar-10", folder)
    if name != "cifar10-cnn6":
        return ""
    frozen = trunk(folder, track=track)
    if not all(features_file(frozen, f"cifar-10-{part}", folder).exists() for part in ("train", "test")):
        load_images(name, folder, track=track)
    return frozen.digest


def _pixels(name: str, folder: Path) -> list[tuple[Tensor, Tensor]]:
    """Training and test images of a set, as bytes, with labels."""
    files = image_files(name, folder)
    if name == "cifar-10":
        return [read_cifar(part, labels=1, classes=10) for part in (files[:5], files[5:])]
    return [read_idx_pair(files[0], files[1]), read_idx_pair(files[2], files[3])]


def _networks(name: str, build: Callable[[str], nn.Module]) -> dict[str, Network]:
    """A network with each activation."""
    return {f"{name} {activation}": partial(build, activation) for activation in ACTIVATIONS}
