"""The user's own module during a pass: it is not run, nothing is written into it, and no gradient goes to it.

Passes run on twins, with parameters and buffers by value. Code that reaches the user's own module by another way (a
closure, a compiled function) would use parameters that are not the pass's, whose gradients would silently be missing,
or leave something of an example in what the next one reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.errors import IsolationError

_GUARD = "dpsrm: not during a pass"
_RUN = (
    "records would touch the user's own module: losses must run the model that they are given, losses(model, batch), "
    "and a module must reach its layers through self, not through a lambda, a closure or a compiled function"
)
_USED = (
    "the loss depends on the user's own parameter {}, not on the pass's copy, so its gradient would be missing: losses "
    "must use the model that they are given, losses(model, batch), and a module its parameters through self"
)
_WRITTEN = (
    "a pass wrote into the user's own {}, which the next example would see: write through self only, not through a "
    "lambda or a closure; nothing was released"
)


@dataclass(frozen=True, eq=False)
class Own:
    """The user's own modules, and those of their parameters and buffers that lie here, by name."""

    modules: tuple[nn.Module, ...]
    tensors: dict[str, Tensor]

    @property
    def trained(self) -> dict[str, Tensor]:
        """The trainable parameters."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad}

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Inside, running one of the modules is an error, and so is writing into one of the tensors."""
        versions = [tensor._version for tensor in self.tensors.values()]
        for module in self.modules:  # by hand: `register_forward_pre_hook` takes a hundred times as long
            module._forward_pre_hooks[_GUARD] = _refuse  # type: ignore[index]
        try:
            yield
        finally:
            for module in self.modules:
                module._forward_pre_hooks.pop(_GUARD, None)  # type: ignore[call-overload]
        for (name, tensor), version in zip(self.tensors.items(), versions, strict=True):
            if tensor._version != version:
                raise IsolationError(_WRITTEN.format(name))

    def refuse_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Refuse a loss that has a gradient with respect to a trained parameter; `gradients` in their order."""
        for name, gradient in zip(self.trained, gradients, strict=True):
            if gradient is not None:
                raise IsolationError(_USED.format(name))

    def refuse_use(self, losses_B: Tensor) -> None:
        """Refuse losses in whose graph a trained parameter is."""
        if losses_B.requires_grad:
            own = tuple(self.trained.values())
            self.refuse_gradients(torch.autograd.grad(losses_B.sum(), own, allow_unused=True) if own else ())


def _refuse(*_: Any) -> None:
    """Refuse that one of the modules runs on records."""
    raise IsolationError(_RUN)
