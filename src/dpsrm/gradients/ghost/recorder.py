"""One recorded forward and backward pass: every call of a function with parameters, its inputs and output gradients.

Each example runs alone, under vmap. The parameters are passed by value, and each recorded call gets a copy that asks
for no gradient; the call's output goes through a tap, which sees the output's gradient on the way back. Whatever uses a
parameter without being recorded leaves a trace, because then autograd finds a gradient for it: a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import need
from dpsrm.core.tree import leaves
from dpsrm.gradients.batch import Batch, examples
from dpsrm.gradients.ghost.fallback import ModuleCall, watch
from dpsrm.gradients.ghost.rewrites import REWRITES
from dpsrm.gradients.ghost.rules import RULES, Rule
from dpsrm.gradients.ghost.tap import Tapped, show, spread, tap
from dpsrm.gradients.ghost.terms import Term
from dpsrm.gradients.ghost.together import TOGETHER
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.passes import Pass, for_each

Key = tuple[str, tuple[str, ...], int]
"""Which call: its function's rule, the parameters it uses, and how many such calls came before."""


@dataclass
class Call(Tapped):
    """A recorded call of a function that has a rule; `x` is its input for all examples, examples in front."""

    key: Key
    rule: Rule
    arguments: dict[str, Any]
    names: dict[str, str]
    data: str
    seed: Tensor
    run: Callable[[Tensor], Tensor] | None = None
    """What makes the output of the input, if the call sees the input only."""
    x: Tensor | None = None
    shape: tuple[int, ...] = ()
    version: int = 0
    rooted: bool = False

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """Remember the input, and tap the output (which is still to be made, if there is `run`)."""
        (x,) = inputs if self.run is None else (output,)
        if x is None:
            return output
        output = output if self.run is None else self.run(x)
        self.x, self.version, self.rooted, self.shape = x.detach(), x._version, not x.requires_grad, output.shape
        return tap(output, self.seed, self)

    def terms(self) -> dict[str, Term]:
        """One term per parameter."""
        need(self.x is not None and self.x._version == self.version, _CHANGED, layer=self.key[1])
        assert self.x is not None
        grad = self.grad if self.grad is not None else self.x.new_zeros(self.shape)
        terms = self.rule.terms(grad, **{**self.arguments, self.data: self.x})
        return {name: terms[argument] for argument, name in self.names.items()}


_CHANGED = "a layer's input must not be changed in place later"


AnyCall = Call | ModuleCall


@dataclass(frozen=True)
class Recording:
    """What one pass recorded: calls, losses, and the parameters that were used without being recorded."""

    calls: tuple[AnyCall, ...]
    losses_B: Tensor
    leaks: tuple[str, ...]

    @property
    def numbers(self) -> int:
        """How many numbers of inputs and output gradients are kept per example."""
        calls = [call for call in self.calls if isinstance(call, Call) and call.x is not None]
        inputs = {call.x.data_ptr(): call.x.numel() for call in calls if call.x is not None}
        gradients = sum(call.grad.numel() for call in self.calls if call.grad is not None)
        return (sum(inputs.values()) + gradients) // max(1, len(self.losses_B))

    @property
    def tensors(self) -> list[Tensor]:
        """Losses, and what the calls recorded, each with a row per example."""
        inputs = [call.x for call in self.calls if isinstance(call, Call) and call.x is not None]
        return [self.losses_B, *inputs, *(call.grad for call in self.calls if call.grad is not None)]


class Recorder(TorchFunctionMode):
    """Sees every function of torch that is called, and records those with a rule and a watched parameter."""

    def __init__(self, parameters: Mapping[str, Tensor], *, batch: int | None) -> None:
        """Watch `parameters`; `batch` is the size of the batch if it is run in one call, None if under vmap."""
        super().__init__()
        self.names = {id(p): name for name, p in parameters.items()}
        self.batch = batch
        self.seed = torch.zeros((), requires_grad=True)
        self.example: Tensor | None = None
        self.calls: list[AnyCall] = []
        self.paused = False
        self._count: dict[tuple[str, tuple[str, ...]], int] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, recorded if it has a rule, in pieces if it has a rewrite."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func in TOGETHER and self.example is not None:
            result = TOGETHER[func](self.example, *args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        if func in REWRITES:
            with self:
                result = REWRITES[func](*args, **kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        if func not in RULES or not any(id(value) in self.names for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return self._record(func, args, kwargs)

    def _record(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a call that has a rule, and show its output to a `Call`."""
        rule = RULES[func]
        try:
            arguments = rule.bind(args, kwargs)
        except TypeError:
            return func(*args, **kwargs)
        names = {argument: self.names[id(v)] for argument, v in arguments.items() if id(v) in self.names}
        key = self._key(rule.terms.__name__, tuple(names.values()))
        data = "x" if "x" not in names else "other"
        x = arguments.get(data)
        if data in names or not isinstance(x, Tensor):
            return func(*args, **kwargs)
        swap = {id(v): v.detach() for v in (*args, *kwargs.values()) if id(v) in self.names}
        call = Call(None, key, rule, {a: swap.get(id(v), v) for a, v in arguments.items()}, names, data, self.seed)

        def run(value: Tensor) -> Tensor:
            given = {**swap, id(x): value}
            named = {name: given.get(id(v), v) for name, v in kwargs.items()}
            output: Tensor = func(*(given.get(id(v), v) for v in args), **named)
            return output

        known = {id(x), *self.names}
        alike = all(id(v) in known for v in arguments.values() if isinstance(v, Tensor))
        call.run = run if rule.leading and alike and self.batch is None else None
        shown = self._shown(call, run, x)
        if call.x is None and self.example is not None:
            shown = self._shown(call, run, spread(x, self.example))
        call.run = None
        if call.x is None:
            return func(*args, **kwargs)
        self.calls.append(call)
        return shown

    def _shown(self, call: Call, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The output after the call saw it; in a batched pass the examples must lie in the first dimension."""
        if call.run is not None:
            return show(call, x)
        output = run(x)
        if self.batch is None:
            return show(call, output, x)
        if x.dim() == 0 or output.dim() == 0 or len(x) != self.batch or len(output) != self.batch:
            return output
        return call.saw(output.unsqueeze(1), [x.unsqueeze(1)]).squeeze(1)

    def _key(self, rule: str, names: tuple[str, ...]) -> Key:
        """The next call's key."""
        count = self._count[rule, names] = self._count.get((rule, names), -1) + 1
        return rule, names, count


def record(
    objective: Objective,
    point_P: Tensor,
    batch: Batch,
    *,
    modules: Sequence[str] = (),
    cut: bool = False,
    steady: bool = True,
) -> Recording:
    """One pass at `point_P` over a batch of one example or more, forward and backward through Σ losses.

    Args:
        steady: as in `for_each`.
        modules: submodules that are left to `torch.func` (see `fallback`).
        cut: let those submodules' parameters show whether they are used elsewhere.
    """
    with torch.enable_grad(), objective.explained(point_P, batch):
        leaves = {name: p.detach().requires_grad_() for name, p in objective.parameters(point_P).items()}
        inside = () if cut else tuple(f"{name}." for name in modules)
        handed = {name: p.detach() if name.startswith(inside) else p for name, p in leaves.items()}
        recorder = Recorder(handed, batch=examples(batch) if objective.way is Way.BATCH else None)
        run = objective.ready()
        watch(objective, run, modules, recorder, cut=cut)
        losses_B = _losses(run, handed, recorder, batch, steady=steady)
        if not losses_B.requires_grad:
            return Recording(tuple(recorder.calls), losses_B.detach(), ())
        found = torch.autograd.grad(losses_B.sum(), [recorder.seed, *leaves.values()], allow_unused=True)
    leaks = tuple(name for name, gradient in zip(leaves, found[1:], strict=True) if gradient is not None)
    return Recording(tuple(recorder.calls), losses_B.detach(), leaks)


def _losses(run: Pass, handed: dict[str, Tensor], recorder: Recorder, batch: Batch, *, steady: bool) -> Tensor:
    """The losses of the recorded forward pass."""
    if recorder.batch is not None:
        with recorder:
            return run.batch(handed, batch)

    def one(numbered: tuple[Batch, Tensor]) -> Tensor:
        x, recorder.example = numbered
        with recorder:
            return run.one(handed, x)

    numbered = (batch, torch.zeros(examples(batch), device=leaves(batch)[0].device))
    losses_B: Tensor = for_each(one, numbered, steady=steady)
    return losses_B
