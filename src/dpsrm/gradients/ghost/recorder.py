"""One recorded forward and backward pass: every call of a function with parameters, its inputs and output gradients.

The parameters are passed by value, and each recorded call gets a copy that asks for no gradient; the call's output
goes through a `_Tap`, which sees the output's gradient on the way back. Whatever uses a parameter without being
recorded leaves a trace, because then autograd finds a gradient for it: a leak. Nothing is attached to the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.fallback import ModuleCall, watched
from dpsrm.gradients.ghost.rewrites import REWRITES
from dpsrm.gradients.ghost.rules import RULES, Rule
from dpsrm.gradients.ghost.tap import Tapped, tap
from dpsrm.gradients.ghost.terms import Term
from dpsrm.gradients.objective import Objective

FLAT = -1
"""The batch lies in the first dimension together with the positions, examples in front: (B·T, ...)."""

Key = tuple[str, tuple[str, ...], int]
"""Which call: its function's rule, the parameters it uses, and how many such calls came before."""


@dataclass
class Call(Tapped):
    """A recorded call of a function that has a rule."""

    key: Key
    rule: Rule
    arguments: dict[str, Any]
    names: dict[str, str]
    data: str
    shape: torch.Size
    rooted: bool
    version: int

    def fits(self, examples: int, where: int) -> bool:
        """Whether the batch is where the survey found it."""
        shape = self.arguments[self.data].shape
        return bool(shape[0] % examples == 0 if where == FLAT else shape[where] == examples)

    def inputs(self) -> dict[str, Tensor]:
        """The tensors the call was made with, apart from parameters."""
        return {self.data: self.arguments[self.data]}

    def replace(self, name: str, x: Tensor) -> None:
        """Let an equal tensor stand for an input."""
        self.arguments[name], self.version = x, x._version

    def terms(self, examples: int, where: int) -> dict[str, Term]:
        """One term per parameter; the batch is brought to the front first."""
        x = self.arguments[self.data]
        need(x._version == self.version, "a layer's input must not be changed in place later", layer=self.key[1])
        grad = self.grad if self.grad is not None else x.new_zeros(self.shape)
        moved = {**self.arguments, self.data: front(x, examples, where)}
        terms = self.rule.terms(front(grad, examples, where), **moved)
        return {name: terms[argument] for argument, name in self.names.items()}


def front(x: Tensor, examples: int, where: int) -> Tensor:
    """`x` with the batch as its first dimension."""
    return x.view(examples, -1, *x.shape[1:]) if where == FLAT else x.movedim(where, 0)


AnyCall = Call | ModuleCall


@dataclass(frozen=True)
class Recording:
    """What one pass recorded: calls, losses, and the parameters that were used without being recorded."""

    calls: tuple[AnyCall, ...]
    losses_B: Tensor
    leaks: tuple[str, ...]


class Recorder(TorchFunctionMode):
    """Sees every function of torch that is called, and records those with a rule and a watched parameter."""

    def __init__(self, parameters: Mapping[str, Tensor], accepts: Callable[[Key], bool]) -> None:
        """Watch `parameters`; calls whose key is not accepted run as they are."""
        super().__init__()
        self.names = {id(p): name for name, p in parameters.items()}
        self.accepts = accepts
        self.seed = torch.zeros((), requires_grad=True)
        self.calls: list[AnyCall] = []
        self.paused = False
        self._count: dict[tuple[str, tuple[str, ...]], int] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, recorded if it has a rule, in pieces if it has a rewrite."""
        kwargs = kwargs or {}
        if self.paused or (func not in RULES and func not in REWRITES):
            return func(*args, **kwargs)
        if func in REWRITES:
            with self:
                result = REWRITES[func](*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        if not any(id(value) in self.names for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return self._record(func, args, kwargs)

    def _record(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a call that has a rule, and tap its output."""
        rule = RULES[func]
        try:
            arguments = rule.bind(args, kwargs)
        except TypeError:
            return func(*args, **kwargs)
        names = {argument: self.names[id(v)] for argument, v in arguments.items() if id(v) in self.names}
        key = self._key(rule.terms.__name__, tuple(names.values()))
        data = "x" if "x" not in names else "other"
        x = arguments.get(data)
        if data in names or not isinstance(x, Tensor) or not self.accepts(key):
            return func(*args, **kwargs)
        swap = {id(v): v.detach() for v in (*args, *kwargs.values()) if id(v) in self.names}
        output = func(*(swap.get(id(v), v) for v in args), **{k: swap.get(id(v), v) for k, v in kwargs.items()})
        frozen = {argument: swap.get(id(v), v) for argument, v in arguments.items()}
        frozen[data] = x.detach()
        call = Call(None, key, rule, frozen, names, data, output.shape, not x.requires_grad, x._version)
        self.calls.append(call)
        return tap(output, self.seed, call)

    def _key(self, rule: str, names: tuple[str, ...]) -> Key:
        """The next call's key."""
        count = self._count[rule, names] = self._count.get((rule, names), -1) + 1
        return rule, names, count


@dataclass(frozen=True)
class Route:
    """How a module is recorded: where the batch is in each call, and which modules are left to `torch.func`."""

    where: Mapping[Key, int] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    everything: bool = False
    cut: bool = False

    def accepts(self, key: Key) -> bool:
        """Whether the call is recorded; an unknown one runs as it is, and leaks."""
        return self.everything or key in self.where


def record(objective: Objective, point_P: Tensor, inputs: Tensor, targets: Tensor, *, route: Route) -> Recording:
    """One pass at `point_P` over a batch of one example or more, forward and backward through Σ losses."""
    with torch.enable_grad():
        recorder, leaves, losses_B = forward(objective, point_P, inputs, targets, route=route)
        if not losses_B.requires_grad:
            return Recording(tuple(recorder.calls), losses_B.detach(), ())
        found = torch.autograd.grad(losses_B.sum(), [recorder.seed, *leaves.values()], allow_unused=True)
    leaks = tuple(name for name, gradient in zip(leaves, found[1:], strict=True) if gradient is not None)
    return Recording(tuple(recorder.calls), losses_B.detach(), leaks)


def forward(
    objective: Objective, point_P: Tensor, inputs: Tensor, targets: Tensor, *, route: Route
) -> tuple[Recorder, dict[str, Tensor], Tensor]:
    """The recorded forward pass: the recorder, the parameters as leaves of the graph, and the losses."""
    leaves = {name: p.detach().requires_grad_() for name, p in objective.layout.split(point_P).items()}
    inside = () if route.cut else tuple(f"{name}." for name in route.modules)
    handed = {name: p.detach() if name.startswith(inside) else p for name, p in leaves.items()}
    recorder = Recorder(handed, route.accepts)
    buffers = {name: buffer.clone() for name, buffer in objective.module.named_buffers()}
    with ExitStack() as hooks:
        hooks.enter_context(watched(objective.module, route.modules, recorder, cut=route.cut))
        hooks.enter_context(recorder)
        outputs = torch.func.functional_call(objective.module, {**buffers, **handed}, (inputs,))
    return recorder, leaves, objective.losses_of(outputs, targets, examples=len(inputs))
