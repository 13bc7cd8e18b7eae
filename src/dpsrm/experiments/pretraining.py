"""CNN6's convolutions, pretrained on CIFAR-100 (public, as in the paper), and the features they make of CIFAR-10.

Both are kept below the data folder, under a fingerprint of everything they follow from. No private record takes part in
the pretraining, and the frozen trunk makes each record's features from that record alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dpsrm.core.errors import need
from dpsrm.core.tracking import Track, silent
from dpsrm.data.images import read_cifar, scaled
from dpsrm.data.public import IMAGE_SETS, image_files
from dpsrm.experiments.networks import CNN6_FEATURES, cnn6_trunk, seeded

CIFAR_PIXELS = {"centre": 0.5, "spread": 0.25}
"""Public constants: from bytes to numbers between −2 and 2."""
_HELD = 2000
"""Records of CIFAR-100 that only measure."""
_PIECE = 500


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the trunk is trained: SGD with Nesterov momentum; the rate rises for a fifth of the steps, then falls to 0.

    Every setting is part of the fingerprint. Images are flipped at random and moved by up to `shift` pixels.
    """

    epochs: int = 9
    batch: int = 125
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    smoothing: float = 0.1
    shift: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        need(self.epochs >= 1, "epochs must be 1 or more", epochs=self.epochs)

    @property
    def fingerprint(self) -> str:
        """A hash of these settings, the pixels' scale, the trunk's layers, and CIFAR-100's own digest."""
        digests = [file.sha256 for file in IMAGE_SETS["cifar-100"]]
        facts = {**asdict(self), "pixels": CIFAR_PIXELS, "layers": str(cnn6_trunk(normalised=True)), "data": digests}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


TRUNKS = "cnn6"
"""Where trunks and their features are, in the data folder; and beside results, the trunk that their table rests on."""


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """Frozen convolutions without batch norm; `digest` names their weights, `accuracy` is on held-out CIFAR-100."""

    module: nn.Module
    digest: str
    accuracy: float


def trunk(folder: Path, *, recipe: Pretraining | None = None, track: Track = silent) -> Trunk:
    """The pretrained trunk: from the cache in the data folder `folder`, or else trained now and kept there."""
    recipe = recipe or Pretraining()
    path = folder / TRUNKS / f"trunk-{recipe.fingerprint}.safetensors"
    if not path.exists():
        weights, accuracy = _pretrain(folder, recipe, track)
        _keep(path, {**weights, "accuracy": torch.tensor(accuracy)})
    state = load_file(path)
    accuracy = float(state.pop("accuracy"))
    module = cnn6_trunk()
    module.load_state_dict(state)
    digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()[:12]
    return Trunk(module=module.eval().requires_grad_(False), digest=digest, accuracy=accuracy)


def features_file(frozen: Trunk, name: str, folder: Path) -> Path:
    """Where the features of a set are kept."""
    return folder / TRUNKS / f"features-{name}-{frozen.digest}.safetensors"


def features(frozen: Trunk, name: str, folder: Path, *, pixels: Tensor, track: Track = silent) -> Tensor:
    """The trunk's features (N, 2048) of `pixels` (N, 3, 32, 32), computed once and kept as half-precision numbers.

    `name` tells the parts of a set apart, such as "cifar-10-train".
    """
    path = features_file(frozen, name, folder)
    if not path.exists():
        pieces = torch.split(pixels, _PIECE)
        with torch.no_grad():
            made = [
                frozen.module(scaled(piece, **CIFAR_PIXELS).to(memory_format=torch.channels_last)).half()
                for piece in track(pieces, len(pieces), f"CNN6: features of {name}")
            ]
        _keep(path, {"features": torch.cat(made)})
    found = load_file(path)["features"]
    fits = tuple(found.shape) == (len(pixels), CNN6_FEATURES)
    need(fits, "kept features must fit the images", file=str(path), got=tuple(found.shape), remedy="delete the file")
    return found.float()


def _keep(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part)
    part.replace(path)


def _pretrain(folder: Path, recipe: Pretraining, track: Track) -> tuple[dict[str, Tensor], float]:
    """Train on CIFAR-100: the trunk's weights with batch norm folded in, and its accuracy on held-out records."""
    pixels, labels = read_cifar(image_files("cifar-100", folder), labels=2, classes=100)
    normalised = cnn6_trunk(normalised=True)
    parts = nn.Sequential(normalised, nn.Linear(CNN6_FEATURES, 100))
    module = seeded(lambda: parts.apply(_reset), recipe.seed)
    _fit(module, pixels[:-_HELD], labels[:-_HELD], recipe=recipe, track=track)
    module.eval()
    with torch.no_grad():
        right = module(scaled(pixels[-_HELD:], **CIFAR_PIXELS)).argmax(1) == labels[-_HELD:]
    return _folded(normalised).state_dict(), float(right.double().mean())


def _fit(module: nn.Module, pixels: Tensor, labels: Tensor, *, recipe: Pretraining, track: Track) -> None:
    """Train a module in place as the recipe says."""
    batches = list(_batches(recipe, len(labels)))
    rise, steps = max(1, len(batches) // 5), len(batches)
    moving = np.random.Generator(np.random.PCG64(recipe.seed + 1))
    optimizer = torch.optim.SGD(
        module.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=recipe.weight_decay
    )
    for step, batch in enumerate(track(batches, steps, "CNN6: pretraining on CIFAR-100")):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(
            (step + 1) / rise, (steps - step) / max(1, steps - rise)
        )
        images = _moved(scaled(pixels[batch], **CIFAR_PIXELS), recipe.shift, moving)
        outputs = module(images.to(memory_format=torch.channels_last))
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(outputs, labels[batch], label_smoothing=recipe.smoothing))
        optimizer.step()


def _reset(layer: nn.Module) -> None:
    """Draw a layer's start anew."""
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        layer.reset_parameters()


def _batches(recipe: Pretraining, n: int) -> Iterator[Tensor]:
    """Which records each step trains on: all of them once an epoch, in a random order."""
    stream = np.random.Generator(np.random.PCG64(recipe.seed))
    for _ in range(recipe.epochs):
        order = torch.from_numpy(stream.permutation(n))
        yield from (order[start : start + recipe.batch] for start in range(0, n - recipe.batch + 1, recipe.batch))


def _moved(images: Tensor, shift: int, stream: np.random.Generator) -> Tensor:
    """The images flipped at random, each one for itself, and all moved by the same random number of pixels."""
    flip = torch.from_numpy(stream.random(len(images)) < 0.5)
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    down, right = (int(stream.integers(2 * shift + 1)) for _ in range(2))
    padded = F.pad(images, [shift] * 4, mode="reflect")
    return padded[:, :, down : down + images.shape[2], right : right + images.shape[3]]


def _folded(normalised: nn.Sequential) -> nn.Sequential:
    """The trunk with each batch norm folded into the convolution before it."""
    layers: list[nn.Module] = []
    for layer in normalised:
        if isinstance(layer, nn.BatchNorm2d) and isinstance(layers[-1], nn.Conv2d):
            layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)
