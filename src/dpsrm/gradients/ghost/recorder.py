"""The functions of torch that a module calls, seen one by one: those that use a parameter are recorded.

Each example runs alone, under vmap. The parameters are passed by value, and each recorded call gets a copy that asks
for no gradient; the place where its output's gradient comes by is remembered. A function with a rule is recorded by its
rule. A function of parameters alone makes a tensor that is watched like a parameter. Any other function is given a copy
of the parameter for each example. Whatever uses a parameter in another way leaves a trace, because then autograd finds
a gradient for it: a leak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from dpsrm.gradients.failures import Watching
from dpsrm.gradients.ghost.calls import Call, Copied, Key
from dpsrm.gradients.ghost.derived import RANDOM, Derived, values_of
from dpsrm.gradients.ghost.kept import Kept, Shown
from dpsrm.gradients.ghost.rules import RULES
from dpsrm.gradients.ghost.tap import NestedError, depend, show, spread
from dpsrm.gradients.ghost.together import TOGETHER, WITH_BIAS, faster
from dpsrm.gradients.overridden import wrapped
from dpsrm.gradients.rewrites import REWRITES, within

AnyCall = Call | Copied
Named = Mapping[str, Tensor]
Sizes = tuple[int, int] | None
_BACKWARD: tuple[Callable[..., Any], ...] = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_GRAPH = cast(Any, torch.Tensor.grad_fn).__get__
"""A module that asks for a tensor's place in the graph: to hook into the way back, which is not there under vmap."""
_SPECIAL = frozenset({*TOGETHER, *WITH_BIAS, *REWRITES, *_BACKWARD, _GRAPH})


class Recorder(Watching):
    """Sees every function of torch that is called, and records those that use a watched tensor."""

    def __init__(self, parameters: Named, frozen: Iterable[Tensor] = (), *, batch: Sizes, shown: Shown = None) -> None:
        """Watch `parameters`.

        Args:
            frozen: tensors that are the same for all examples, of whose products the fastest are chosen.
            batch: how many examples of how many rows are run in one call, None if under vmap.
            shown: the calls that must be shown while they run; vmap hands out the others' tensors at the end.
        """
        super().__init__()
        self.kept = Kept(parameters.values(), shown if batch is None else None)
        self.names = {id(p): name for name, p in parameters.items()}
        self._frozen = {id(tensor) for tensor in frozen}
        self.derived = Derived(parameters)
        self.batch = batch
        like = next(iter(parameters.values()), torch.empty(0, device="cpu"))
        self.seed = torch.zeros((), requires_grad=True, device=like.device)
        self.example: Tensor | None = None
        self.calls: list[AnyCall] = []
        self._count: dict[tuple[str, tuple[str, ...]], int] = {}
        self._copies: dict[int, Tensor] = {}

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run `func`: as it is, unless it uses a parameter or something else runs in its place."""
        if func not in RULES and (own := wrapped(func)):
            with self:
                return own(*args, **kwargs)
        if not kwargs and func not in _SPECIAL and not self._uses(args):
            return within(func)(*args)
        return self._run(func, args, kwargs)

    def _uses(self, values: Sequence[Any]) -> bool:
        """Whether a value is watched, or a list of values of which one is."""
        watched = self.names.keys()
        if not watched.isdisjoint(map(id, values)):
            return True
        return any(isinstance(value, (tuple, list)) and not watched.isdisjoint(map(id, value)) for value in values)

    def _run(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run `func`: together for all examples, in pieces if it has a rewrite, recorded if it uses a parameter."""
        if func in TOGETHER and self.example is not None:
            result = TOGETHER[func](self.example, *args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in REWRITES:
            with self:
                result = REWRITES[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in _BACKWARD or func == _GRAPH:
            raise NestedError("a module that differentiates inside, or looks at the graph")
        if not torch.is_grad_enabled() or not self._uses((*args, *kwargs.values())):
            same = len(args) > 1 and id(args[1]) in self._frozen
            plain = within(func)
            return (plain if self.example is None else faster(plain, kwargs, same=same))(*args, **kwargs)
        result = self._record(func, args, kwargs) if func in RULES else NotImplemented
        return self._use(within(func), args, kwargs) if result is NotImplemented else result

    def _record(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a call that has a rule, and show its output to a `Call`; NotImplemented if the rule does not fit."""
        rule = RULES[func]
        arguments = rule.bind(args, kwargs)
        if arguments is None:
            return NotImplemented
        names = {argument: self.names[id(v)] for argument, v in arguments.items() if self._watched(v)}
        data = rule.data(names)
        x = arguments.get(data)
        twice = len(set(names.values())) < len(names)  # one parameter in two places of a call: both have a gradient
        if not names or twice or data in names or not isinstance(x, Tensor) or x.is_complex():
            return NotImplemented
        swap = {id(arguments[a]): rule.laid_out(arguments[a].detach(), arguments) for a in names}
        key = self._key(rule.terms.__name__, tuple(names.values()))
        arguments = {a: swap.get(id(v), v) for a, v in arguments.items()}
        call = Call(key=key, rule=rule, arguments=arguments, names=names, data=data, seed=self.seed)

        plain = within(func)

        def run(value: Tensor, function: Callable[..., Tensor] = plain) -> Tensor:
            if call.run is not None and rule.instead is not None:
                return rule.instead(**{**arguments, data: value})
            given = {**swap, id(x): value}
            named = {name: given.get(id(v), v) for name, v in kwargs.items()}
            return function(*(given.get(id(v), v) for v in args), **named)

        if self.example is not None and self.kept.takes(key):
            swap.update({at: rule.laid_out(self.kept.asking[at], arguments) for at in swap if at in self.kept.asking})
            self.calls.append(call)
            return self.kept.add(call, x, run(x, faster(plain, kwargs, same="weight" in names)))
        alike = all(v is x or a in names for a, v in arguments.items() if isinstance(v, Tensor))
        call.run = run if rule.leading and alike and self.batch is None else None
        shown = self._shown(call, run, x)
        if call.x is None and self.example is not None:
            shown = self._shown(call, run, spread(x, self.example))
        call.run = None
        if call.x is None:
            return NotImplemented
        self.calls.append(call)
        return shown

    def _watched(self, value: Any) -> bool:
        """Whether a value is a parameter, or was computed from parameters alone."""
        if id(value) not in self.names:
            return False
        made = self.names[id(value)] in self.derived.made
        return not made or (self.example is not None and self.derived.free(value, self.example))

    def _shown(self, call: Call, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The output after the call saw it; in a batched pass the examples must lie in the first dimension."""
        if self.example is not None and call.run is not None:
            return show(call, self.example, x)
        output = run(x)
        if self.example is not None:
            return show(call, self.example, output, x)
        assert self.batch is not None
        rows = math.prod(self.batch)
        if x.dim() == 0 or output.dim() == 0 or len(x) != rows or len(output) != rows:
            return output
        return call.saw(torch.unflatten(output, 0, self.batch), [torch.unflatten(x, 0, self.batch)]).flatten(0, 1)

    def _use(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run a function of parameters that no rule fits."""
        if self.example is None:
            return func(*args, **kwargs)
        others = [v for v in values_of(args, kwargs) if isinstance(v, Tensor) and id(v) not in self.names]
        if func not in RANDOM and not (others and any(depend(self.example, *others))):
            return self._made(func, func(*args, **kwargs))
        given = (self._swapped(value) for value in args)
        return func(*given, **{name: self._swapped(value) for name, value in kwargs.items()})

    def _made(self, func: Callable[..., Any], output: Any) -> Any:
        """The output of a function of parameters alone; from now on it is watched like a parameter."""
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor) and tensor.requires_grad and id(tensor) not in self.names:
                self.names[id(tensor)] = self.derived.name(tensor, getattr(func, "__name__", "function"))
        return output

    def _swapped(self, value: Any) -> Any:
        """A value with copies for each example in the place of watched tensors."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._swapped, value))
        return self._copied(value) if self._watched(value) else value

    def _copied(self, tensor: Tensor) -> Tensor:
        """A copy of a watched tensor for each example, made once."""
        assert self.example is not None
        if id(tensor) not in self._copies:
            call = Copied(key=self._key("copies", (self.names[id(tensor)],)))
            self._copies[id(tensor)] = show(call, self.example, spread(tensor.detach(), self.example))
            self.calls.append(call)
        return self._copies[id(tensor)]

    def _key(self, rule: str, names: tuple[str, ...]) -> Key:
        """The next call's key."""
        count = self._count[rule, names] = self._count.get((rule, names), -1) + 1
        return rule, names, count
