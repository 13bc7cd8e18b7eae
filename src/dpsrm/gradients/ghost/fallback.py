"""Modules that use a parameter in a way no rule knows: their per-example gradients by `torch.func`, module by module.

The module's inputs are recorded and its output is tapped; each example's gradient is then one vectorised product of
the output's gradient with the module's Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.tap import Tapped, show, spread, tap
from dpsrm.gradients.ghost.terms import Rows, Term
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.passes import Pass


@dataclass
class ModuleCall(Tapped):
    """A recorded call of a whole module."""

    name: str
    module: nn.Module
    parameters: dict[str, Tensor]
    values: dict[str, Tensor]
    given: tuple[Tensor, ...]
    seed: Tensor
    seen: list[tuple[Tensor, int | None]] = field(default_factory=list)
    tapped: bool = False

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """What identifies the call."""
        return "module", (self.name,), 0

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """Remember the inputs, and tap the output; what is the same for all examples is kept as it was given."""
        pairs = zip(self.given, inputs, strict=True)
        self.tapped = True
        self.seen = [(given.detach(), None) if x is None else (x.detach(), 0) for given, x in pairs]
        return tap(output, self.seed, self)

    def terms(self) -> dict[str, Term]:
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
            output: Tensor = functional_call(self.module, {**self.values, **parameters}, inputs)
            return (output * gradient).sum()

        in_dims = (None, 0, *(at for _, at in self.seen))
        rows: Any = vmap(grad(pulled), in_dims=in_dims)  # its type knows nothing of the arguments
        found: dict[str, Tensor] = rows(self.parameters, self.grad, *(x for x, _ in self.seen))
        return found


class Hooked(Protocol):
    """What a hook needs of the recorder that is at work."""

    names: dict[int, str]
    seed: Tensor
    example: Tensor | None
    calls: list[Any]
    paused: bool


def watch(objective: Objective, run: Pass, names: Sequence[str], recorder: Hooked, *, cut: bool) -> None:
    """Hooks on the named submodules of a pass's own twin: rules rest inside them, inputs and outputs are recorded.

    With `cut` the output is separated from the graph, so that autograd shows which of the submodule's parameters are
    also used elsewhere.
    """
    for name in names:
        child = run.module.get_submodule(name)
        child.register_forward_pre_hook(_pause(recorder), with_kwargs=True)
        child.register_forward_hook(_resume(name, objective, recorder, cut=cut))


def _pause(recorder: Hooked) -> Any:
    """A hook that stops the rules, and refuses what cannot be run example by example."""

    def hook(child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plain = not kwargs and all(isinstance(x, Tensor) for x in args)
        need(plain, "a module without a rule must be called with tensors only", module=type(child).__name__)
        recorder.paused = True

    return hook


def _resume(name: str, objective: Objective, recorder: Hooked, *, cut: bool) -> Any:
    """A hook that records the call and starts the rules again; its gradients are taken on a twin without hooks.

    An output that is the same for all examples (a weight made of other parameters) becomes one for each of them.
    """

    def hook(child: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        need(isinstance(output, Tensor), "a module without a rule must return one tensor", module=type(child).__name__)
        recorder.paused = False
        parameters = {n: p.detach() for n, p in child.named_parameters() if id(p) in recorder.names}
        clean, prefix = objective.ready(), f"{name}."
        values = {n.removeprefix(prefix): value for n, value in clean.values.items() if n.startswith(prefix)}
        twin = clean.module.get_submodule(name)
        call = ModuleCall(None, name, twin, parameters, values, args, recorder.seed)
        recorder.calls.append(call)
        output = output.detach() if cut else output
        shown = show(call, output, *args)
        if call.tapped or recorder.example is None:
            return shown
        return show(call, spread(output, recorder.example), *args)

    return hook
