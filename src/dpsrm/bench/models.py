"""The benchmark's models, each with a batch of made-up examples and its losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsrm.bench import language, texts
from dpsrm.bench.vision import VAE, Standardised, UNet, convnext, residual_network
from dpsrm.experiments.networks import cnn4, cnn5


@dataclass(frozen=True)
class Workload:
    """A model, a batch that it takes, and the function of (model, batch) that gives one loss per example."""

    module: nn.Module
    batch: Any
    losses: Callable[[nn.Module, Any], Tensor]


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def pair_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The cross-entropy of every example of a batch (inputs, targets)."""
    return losses(model(batch[0]), batch[1])


def mlp() -> nn.Module:
    """784 → 512 → 256 → 10."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    )


class Transformer(nn.Module):
    """Words → embedding and positions → 4 encoder layers (d = 256, 4 heads, 1024 inside) → mean → 10 classes."""

    def __init__(self, *, words: int = 1000, d: int = 256, positions: int = 64) -> None:
        """Build the layers; no dropout, as is usual in private training."""
        super().__init__()
        self.words = nn.Embedding(words, d)
        self.positions = nn.Embedding(positions, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(d, 10)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The class scores."""
        places = torch.arange(ids_BT.shape[1], device=ids_BT.device).expand_as(ids_BT)
        x_BTD = self.words(ids_BT) + self.positions(places)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        scores: Tensor = self.head(x_BTD.mean(1))
        return scores


def _images(module: nn.Module, count: int, *shape: int) -> Workload:
    """Random images with random classes."""
    return Workload(module, (torch.randn(count, *shape), torch.randint(0, 10, (count,))), pair_losses)


def _words(module: nn.Module, count: int, length: int) -> Workload:
    """Random texts with random classes, for `Transformer`."""
    batch = torch.randint(0, 1000, (count, length)), torch.randint(0, 10, (count,))
    return Workload(module, batch, pair_losses)


def _classified(module: nn.Module, count: int, length: int) -> Workload:
    """Sentences with masks and classes."""
    return Workload(module, texts.sentences(module, count, length), texts.class_losses)


def _continued(module: nn.Module, count: int, length: int) -> Workload:
    """Texts of which every next word is to be guessed."""
    batch = {"input_ids": texts.sentences(module, count, length)["input_ids"]}
    return Workload(module, batch, texts.next_word_losses)


def _vit(tiny: bool, count: int) -> Workload:
    """A vision transformer with random images."""
    made = _images(language.vit(tiny), count, 3, 8 if tiny else 32, 8 if tiny else 32)
    return Workload(made.module, made.batch, texts.image_losses)


def _wrn(tiny: bool, count: int, conv: type[nn.Conv2d]) -> Workload:
    """WRN-16-4 with GroupNorm on images of 32 × 32."""
    widths, blocks = ((4, 8, 8), 1) if tiny else ((16, 64, 128, 256), 2)
    return _images(residual_network(widths, blocks, conv=conv), count, 3, *([8, 8] if tiny else [32, 32]))


def _resnet(tiny: bool, count: int) -> Workload:
    """A ResNet of the size of ResNet-18, with GroupNorm, on images of 32 × 32."""
    widths = (4, 4, 8) if tiny else (64, 64, 128, 256, 512)
    return _images(residual_network(widths, 1 if tiny else 2), count, 3, *([8, 8] if tiny else [32, 32]))


def _convnext(tiny: bool, count: int) -> Workload:
    """A ConvNeXt of 3.4 million parameters ("atto") on images of 32 × 32."""
    widths, depths = ((4, 8), (1, 1)) if tiny else ((40, 80, 160, 320), (2, 2, 6, 2))
    return _images(convnext(widths, depths), count, 3, *([8, 8] if tiny else [32, 32]))


def pixel_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross-entropy of an image's pixels, for every image."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none").mean((1, 2))


def _unet(tiny: bool, count: int) -> Workload:
    """A U-Net with images and a class for every pixel."""
    width, side = (4, 8) if tiny else (32, 64)
    batch = torch.randn(count, 3, side, side), torch.randint(0, 5, (count, side, side))
    return Workload(UNet(width), batch, pixel_losses)


def own_losses(model: nn.Module, batch: Tensor) -> Tensor:
    """The losses of a model that computes its own."""
    found: Tensor = model(batch)
    return found


def _vae(tiny: bool, count: int) -> Workload:
    """A VAE of images of 28 × 28."""
    module, shape = (VAE(16, 8, 3), (1, 4, 4)) if tiny else (VAE(784, 400, 20), (1, 28, 28))
    return Workload(module, torch.randn(count, *shape), own_losses)


@dataclass(frozen=True)
class Entry:
    """How a benchmark's model is made (tiny or of its usual size, with so many examples), and its usual batch."""

    make: Callable[[bool, int], Workload]
    batch: int
    convolves: bool = False
    """Whether plain passes with channels last are a second yardstick."""
    functional: bool = False
    """Whether `torch.func` is measured too; it takes minutes for large models."""


MODELS: dict[str, Entry] = {
    "cnn4": Entry(lambda tiny, b: _images(cnn4(), b, 1, 28, 28), 512, convolves=True, functional=True),
    "cnn5": Entry(lambda tiny, b: _images(cnn5(), b, 3, 32, 32), 128, convolves=True, functional=True),
    "mlp": Entry(lambda tiny, b: _images(mlp(), b, 1, 28, 28), 256, functional=True),
    "transformer": Entry(lambda tiny, b: _words(Transformer(), b, 64), 32, functional=True),
    "bert": Entry(lambda tiny, b: _classified(language.bert(tiny), b, 6 if tiny else 64), 16),
    "distilbert": Entry(lambda tiny, b: _classified(language.distilbert(tiny), b, 6 if tiny else 64), 16),
    "lora": Entry(lambda tiny, b: _classified(language.lora(tiny), b, 6 if tiny else 64), 16),
    "gpt2": Entry(lambda tiny, b: _continued(language.gpt2(tiny), b, 6 if tiny else 64), 16),
    "llama": Entry(lambda tiny, b: _continued(language.llama(tiny), b, 6 if tiny else 64), 16),
    "t5": Entry(lambda tiny, b: _classified(language.T5Classifier(tiny), b, 6 if tiny else 64), 16),
    "mamba": Entry(lambda tiny, b: _continued(language.mamba(tiny), b, 6 if tiny else 32), 8),
    "vit": Entry(_vit, 16),
    "wrn": Entry(lambda tiny, b: _wrn(tiny, b, nn.Conv2d), 32, convolves=True),
    "wrn-ws": Entry(lambda tiny, b: _wrn(tiny, b, Standardised), 32, convolves=True),
    "resnet18": Entry(_resnet, 16, convolves=True),
    "convnext": Entry(_convnext, 32, convolves=True),
    "unet": Entry(_unet, 8, convolves=True),
    "vae": Entry(_vae, 256),
}


def build(name: str, batch: int, *, tiny: bool = False) -> Workload:
    """The model `name` with a batch of made-up examples, always the same ones; `tiny` ones are for tests."""
    torch.manual_seed(0)
    return MODELS[name].make(tiny, batch)
