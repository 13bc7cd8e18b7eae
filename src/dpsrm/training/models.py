"""The models the command line can name; the Python interface takes any nn.Module."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from dpsrm.core.errors import need
from dpsrm.data import Loaded, Records, RecordSource, SparseRecords
from dpsrm.data.arrays import ArrayEncoder
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.gradients import PerExampleLoss, binary_loss, multiclass_loss, squared_loss

KINDS = ("logistic", "linear", "mlp")


@dataclass(frozen=True, kw_only=True)
class Model:
    """`kind` "logistic" (for classes) and "linear" (for numbers) are one linear layer from zero; "mlp" has tanh layers
    of the `hidden` sizes."""

    kind: str = "logistic"
    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        """Refuse models that do not exist."""
        need(self.kind in KINDS, f"the model must be one of {', '.join(KINDS)}", model=self.kind)
        object.__setattr__(self, "hidden", tuple(self.hidden))
        need(all(h >= 1 for h in self.hidden), "hidden layers need at least one unit", hidden=self.hidden)

    def build(self, *, features: int, classes: int, stream: np.random.Generator) -> nn.Module:
        """The module for `features` inputs and `classes` classes: one output for two, and for none (a number)."""
        outputs = 1 if classes in (0, 2) else classes
        if self.kind in ("logistic", "linear"):
            layer = nn.Linear(features, outputs)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            return layer
        if self.kind == "mlp":
            with torch.random.fork_rng():
                torch.manual_seed(int(stream.integers(2**62)))
                sizes = [features, *self.hidden]
                layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
                return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
        raise AssertionError(self.kind)

    def size(self, *, features: int, classes: int) -> int:
        """How many numbers the model trains.

        >>> Model(kind="mlp").size(features=10, classes=2)
        769
        """
        outputs = 1 if classes in (0, 2) else classes
        sizes = [features, *(self.hidden if self.kind == "mlp" else ()), outputs]
        return sum((a + 1) * b for a, b in pairwise(sizes))

    def records(self, loaded: Loaded) -> RecordSource:
        """The records as this model is trained on them: images flat; a linear layer skips the zeros that encoders make.

        Guarantee: which form is taken depends on the model and the encoder, not on a record.
        """
        if not isinstance(loaded.rows, Records):
            return loaded.rows.then(lambda inputs: inputs.reshape(len(inputs), -1))
        flat = Records(loaded.records.inputs.flatten(1), loaded.records.targets)
        dense = self.kind == "mlp" or isinstance(loaded.encoder, (ArrayEncoder, ImageEncoder))
        return flat if dense else SparseRecords.of(flat)


def loss_for(classes: int) -> PerExampleLoss:
    """The loss that belongs to a model built for `classes` classes; for none, the squared loss of a number."""
    if classes == 0:
        return squared_loss
    return binary_loss if classes == 2 else multiclass_loss


__all__ = ["KINDS", "Model", "binary_loss", "loss_for", "multiclass_loss"]
