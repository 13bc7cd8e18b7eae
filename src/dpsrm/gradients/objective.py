"""A module, its per-example loss, and the flat vector its trainable parameters make.

Shapes: B examples, P trainable parameters in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpsrm.core.errors import need

PerExampleLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one loss per example, shape (B,)."""


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


@dataclass(frozen=True)
class Objective:
    """f_i(θ) for every example i: the loss of `module` with trainable parameters θ on that example alone.

    The module is never changed: parameters are passed by value (`torch.func.functional_call`).
    Modules that mix the examples of a batch (BatchNorm) have no per-example loss and are refused.
    """

    module: nn.Module
    loss: PerExampleLoss
    layout: Layout

    @classmethod
    def of(cls, module: nn.Module, loss: PerExampleLoss) -> Objective:
        """Check the module and fix the order of its parameters."""
        for name, child in module.named_modules():
            need(
                not isinstance(child, nn.modules.batchnorm._BatchNorm),
                "a layer that mixes the examples of a batch has no per-example gradient",
                layer=f"{name}: {type(child).__name__}",
                remedy="replace it with nn.GroupNorm",
            )
        return cls(module, loss, Layout.of(module))

    def losses(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The B losses at the parameters `vector_P`."""
        outputs = functional_call(self.module, self.layout.split(vector_P), (inputs,))
        return self.losses_of(outputs, targets, examples=len(inputs))

    def losses_of(self, outputs: Tensor, targets: Tensor, *, examples: int) -> Tensor:
        """The B losses of the module's outputs."""
        losses_B = self.loss(outputs, targets)
        need(
            losses_B.shape == (examples,),
            "the loss must give one number per example",
            shape=tuple(losses_B.shape),
            examples=examples,
            remedy='use reduction="none"',
        )
        return losses_B

    def predict(self, vector_P: Tensor, inputs: Tensor) -> Tensor:
        """The module's outputs at the parameters `vector_P`."""
        outputs: Tensor = functional_call(self.module, self.layout.split(vector_P), (inputs,))
        return outputs
