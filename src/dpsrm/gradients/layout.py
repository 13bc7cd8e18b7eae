"""The flat vector that a module's trainable parameters make.

Shapes: P trainable parameters in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsrm.core.errors import need


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they lie in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module`'s parameters with requires_grad; the others are frozen and stay as they are."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        need(len(named) > 0, "the module must have a trainable parameter", module=type(module).__name__)
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter holds."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return sum(self.sizes)

    def split(self, vector_P: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector in the parameters' shapes."""
        pieces = torch.split(vector_P, self.sizes)
        return {n: piece.view(s) for n, piece, s in zip(self.names, pieces, self.shapes, strict=True)}

    def read(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one flat vector."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    @torch.no_grad()
    def write(self, module: nn.Module, vector_P: Tensor) -> None:
        """Copy the flat vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        for name, piece in self.split(vector_P).items():
            parameters[name].copy_(piece)
