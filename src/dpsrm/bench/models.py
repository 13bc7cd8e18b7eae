"""The benchmark's models and batches of random data for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsrm.experiments.networks import cnn4, cnn5


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


def transformer() -> nn.Module:
    """The encoder with its default sizes."""
    return Transformer()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn4": (cnn4, (1, 28, 28)),
    "cnn5": (cnn5, (3, 32, 32)),
    "mlp": (mlp, (1, 28, 28)),
    "transformer": (transformer, (64,)),
}


def build(name: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The model `name`, and a batch of random examples with random classes."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    inputs = torch.randint(0, 1000, (batch, *shape)) if name == "transformer" else torch.randn(batch, *shape)
    return make(), inputs, torch.randint(0, 10, (batch,))


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of every example."""
    return F.cross_entropy(outputs, targets, reduction="none")
