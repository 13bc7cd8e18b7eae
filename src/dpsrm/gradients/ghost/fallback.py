"""Modules that use a parameter in a way no rule knows: their per-example gradients by `torch.func`, module by module.

The module's inputs are recorded and its output is tapped; each example's gradient is then one vectorised product of
the output's gradient with the module's Jacobian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.tap import Tapped, tap
from dpsrm.gradients.ghost.terms import Rows, Term

if TYPE_CHECKING:
    from dpsrm.gradients.ghost.recorder import Recorder


@dataclass
class ModuleCall(Tapped):
    """A recorded call of a whole module."""

    name: str
    module: nn.Module
    parameters: dict[str, Tensor]
    seen: tuple[Tensor, ...]
    rooted: bool = False

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """What identifies the call."""
        return "module", (self.name,), 0

    def fits(self, examples: int, where: int) -> bool:
        """Whether every input has the batch in front."""
        return all(x.dim() > 0 and len(x) == examples for x in self.seen)

    def inputs(self) -> dict[str, Tensor]:
        """Nothing that could be shared between points."""
        return {}

    def replace(self, name: str, x: Tensor) -> None:
        """Nothing to replace."""

    def terms(self, examples: int, where: int) -> dict[str, Term]:
        """One term per parameter of the module."""
        if self.grad is None:
            return {}
        return {f"{self.name}.{name}": Rows(partial(self._row, name)) for name in self.parameters}

    def _row(self, name: str) -> Tensor:
        """The per-example gradients of one parameter."""
        return self._rows[name]

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        """The per-example gradients of all the module's parameters."""

        def pulled(parameters: dict[str, Tensor], gradient: Tensor, *inputs: Tensor) -> Tensor:
            output: Tensor = functional_call(self.module, parameters, tuple(x.unsqueeze(0) for x in inputs))
            return (output.squeeze(0) * gradient).sum()

        in_dims = (None, *(0 for _ in range(1 + len(self.seen))))
        rows: Any = vmap(grad(pulled), in_dims=in_dims)  # its type knows nothing of the arguments
        found: dict[str, Tensor] = rows(self.parameters, self.grad, *self.seen)
        return found


@contextmanager
def watched(module: nn.Module, names: Sequence[str], recorder: Recorder, *, cut: bool) -> Iterator[None]:
    """Hooks on the named submodules while the block runs: rules rest inside them, inputs and outputs are recorded.

    With `cut` the output is separated from the graph, so that autograd shows which of the submodule's parameters are
    also used elsewhere.
    """
    handles = []
    try:
        for name in names:
            child = module.get_submodule(name)
            handles.append(child.register_forward_pre_hook(_pause(recorder), with_kwargs=True))
            handles.append(child.register_forward_hook(_resume(name, recorder, cut=cut)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pause(recorder: Recorder) -> Any:
    """A hook that stops the rules, and refuses what cannot be run example by example."""

    def hook(child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plain = not kwargs and all(isinstance(x, Tensor) for x in args)
        need(plain, "a module without a rule must be called with tensors only", module=type(child).__name__)
        recorder.paused = True

    return hook


def _resume(name: str, recorder: Recorder, *, cut: bool) -> Any:
    """A hook that records the call and starts the rules again."""

    def hook(child: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        need(isinstance(output, Tensor), "a module without a rule must return one tensor", module=type(child).__name__)
        with torch.no_grad():
            parameters = {n: p.detach() for n, p in child.named_parameters() if id(p) in recorder.names}
        call = ModuleCall(None, name, child, parameters, tuple(x.detach() for x in args))
        call.rooted = not any(x.requires_grad for x in args)
        recorder.calls.append(call)
        recorder.paused = False
        return tap(output.detach() if cut else output, recorder.seed, call)

    return hook
