"""The first look at a module: where the batch lies in every call, what no rule covers, and whether examples mix.

A few small passes over batches of two and three examples, once per shape of input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpsrm.core.errors import DpsrmError, need
from dpsrm.gradients.ghost.recorder import FLAT, AnyCall, Call, Key, Recording, Route, forward, front, record
from dpsrm.gradients.objective import Objective

_REMEDY = "use a layer that normalises within one example, for instance nn.GroupNorm instead of a batch norm"


@dataclass(frozen=True)
class Survey:
    """How to record the module; None if it has to be left to another engine, and why."""

    route: Route | None
    reason: str
    numbers: int
    """How many numbers one recorded example keeps alive at one point."""


def survey(objective: Objective, point_P: Tensor, inputs: Tensor, targets: Tensor) -> Survey:
    """Find out how to record the module, on examples of a batch of one or more; refuse a module that mixes them."""
    state = torch.get_rng_state()
    try:
        look = _Look(objective, point_P.detach(), inputs, targets)
        look.refuse_mixing()
        return look.survey()
    finally:
        torch.set_rng_state(state)


class _Look:
    """The passes of one survey."""

    def __init__(self, objective: Objective, point_P: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Choose the examples: the first three, repeated if there are fewer."""
        if inputs.is_floating_point():
            inputs = torch.nan_to_num(inputs, nan=0.0).clamp(-100, 100)
        self.objective, self.point_P, self.whole = objective, _jittered(objective, point_P), (inputs, targets)
        self.state = torch.get_rng_state()

    def examples(self, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` examples of the batch, again from the start if it is smaller."""
        inputs, targets = self.whole
        which = torch.arange(count, device=inputs.device) % len(inputs)
        return inputs[which], targets[which]

    def refuse_mixing(self) -> None:
        """Change all examples but one: its loss may not move; nor may it in a smaller batch."""
        inputs, targets = self.examples(3)
        changed = inputs * 0.5 + 1 if inputs.is_floating_point() else inputs.flip(0)
        version = inputs._version
        expected = self._losses(inputs, targets)
        need(inputs._version == version, "a module must not change its input in place", remedy="inplace=False")
        for i in range(3):
            others = changed.clone()
            others[i] = inputs[i]
            moved = (self._losses(others, targets) - expected)[i].abs() > 1e-5 * (1 + expected[i].abs())
            need(not bool(moved), "an example's loss must not depend on other examples", remedy=_REMEDY)
        modes = {m: m.training for m in self.objective.module.modules()}
        try:
            for module in modes:
                module.training = False
            three, one = self._losses(inputs, targets)[0], self._losses(inputs[:1], targets[:1])[0]
        finally:
            for module, mode in modes.items():
                module.training = mode
        need(_equal(three, one), "an example's loss must not depend on the size of the batch", remedy=_REMEDY)

    @torch.no_grad()
    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses, always with the same random numbers."""
        torch.set_rng_state(self.state)
        return forward(self.objective, self.point_P, inputs, targets, route=Route())[2]

    def survey(self) -> Survey:
        """Batch dimensions, then leaks; modules that leak are left to `torch.func`, and looked at again."""
        route = Route(where=self._isolated(self._candidates()))
        leaks = self._record(route).leaks
        if leaks:
            owners = {name.rpartition(".")[0] for name in leaks}
            inner = {o for o in owners if not any(o.startswith(f"{other}.") for other in owners)}
            if "" in owners:
                return Survey(None, f"no rule for the use of {', '.join(leaks)}", 0)
            route = replace(route, modules=tuple(sorted(inner)))
            reason = self._trouble(route)
            if reason:
                return Survey(None, reason, 0)
        found = (f"{name} ({type(self.objective.module.get_submodule(name)).__name__})" for name in route.modules)
        return Survey(route, ", ".join(found), self._numbers(route))

    def _record(self, route: Route, count: int = 3) -> Recording:
        """One recorded pass over a few examples."""
        torch.set_rng_state(self.state)
        return record(self.objective, self.point_P, *self.examples(count), route=route)

    def _trouble(self, route: Route) -> str:
        """Why the modules cannot be left to `torch.func`; empty if they can."""
        try:
            outside = self._record(replace(route, cut=True)).leaks
            if outside:
                return f"{', '.join(outside)} is used in more than one module"
            for call in self._record(route).calls:
                for term in call.terms(3, route.where.get(call.key, 0)).values():
                    need(len(term.rows()) == 3, "one row per example")
        except (RuntimeError, ValueError, IndexError, DpsrmError) as error:
            return f"{', '.join(route.modules)}: {error}"
        return ""

    def _candidates(self) -> dict[Key, int]:
        """The dimension that grows with the batch, for every call where there is exactly one."""
        two, three = (
            {call.key: call for call in self._record(Route(everything=True), count).calls} for count in (2, 3)
        )
        found = {key: _batch_dimension(two[key], three[key]) for key in two if key in three}
        return {key: where for key, where in found.items() if where is not None}

    def _isolated(self, where: dict[Key, int]) -> dict[Key, int]:
        """Those calls in which one example's loss moves that example's outputs only."""
        kept = dict(where)
        for example in range(3):
            torch.set_rng_state(self.state)
            with torch.enable_grad():
                recorder, _, losses_B = forward(
                    self.objective, self.point_P, *self.examples(3), route=Route(where=where)
                )
                if not losses_B.requires_grad:
                    return kept
                torch.autograd.grad(losses_B[example], [recorder.seed], allow_unused=True)
            for call in recorder.calls:
                if call.key in kept and not _alone(call, example, where[call.key]):
                    del kept[call.key]
        return kept

    def _numbers(self, route: Route) -> int:
        """Inputs and output gradients of one example."""
        calls = self._record(route).calls
        inputs = {x.data_ptr(): x.numel() for call in calls for x in call.inputs().values()}
        return (sum(inputs.values()) + sum(call.grad.numel() for call in calls if call.grad is not None)) // 3


def _equal(x: Tensor, y: Tensor) -> bool:
    """Equal up to the rounding of sums taken in another order."""
    return bool(torch.allclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True))


def _jittered(objective: Objective, point_P: Tensor) -> Tensor:
    """Parameters near the given ones at which nothing is zero by initialisation, so that no path is hidden.

    A last layer that starts at zero would let no gradient through, and every question about it would be answered yes.
    """
    draw = torch.Generator().manual_seed(0)
    noise = [
        torch.randn(shape, generator=draw) * (0.3 / math.sqrt(max(1, math.prod(shape[1:]))))
        for shape in objective.layout.shapes
    ]
    return point_P + torch.cat([piece.flatten() for piece in noise]).to(point_P)


def _batch_dimension(two: AnyCall, three: AnyCall) -> int | None:
    """Where the batch is: in batches of 2 and 3 exactly one dimension has sizes 2n and 3n."""
    if not isinstance(two, Call) or not isinstance(three, Call):
        return None
    x, y = two.arguments[two.data], three.arguments[three.data]
    if x.dim() != y.dim() or len(two.shape) < 1:
        return None
    grown = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
    if len(grown) != 1 or 3 * x.shape[grown[0]] != 2 * y.shape[grown[0]]:
        return None
    (at,), flat = grown, x.shape[grown[0]] != 2
    if two.shape[at : at + 1] != x.shape[at : at + 1] or not _fits(two):
        return None
    if flat:
        return FLAT if at == 0 and two.rule.anywhere else None
    return at if at == 0 or two.rule.anywhere else None


def _fits(call: Call) -> bool:
    """For sums and products: whether the parameter is broadcast over the batch."""
    if "other" not in call.arguments:
        return True
    x = call.arguments[call.data]
    (parameter,) = (call.arguments[argument] for argument in call.names)
    return bool(call.shape == x.shape and (parameter.dim() < x.dim() or parameter.shape[0] == 1))


def _alone(call: AnyCall, example: int, where: int) -> bool:
    """Whether the gradient of one example's loss is zero at all others.

    Examples and positions in one dimension could lie in either order: there the gradient must be seen to be right.
    """
    if call.grad is None:
        return where != FLAT
    size_B = front(call.grad, 3, where).reshape(3, -1).abs().sum(1)
    others = [float(size_B[i]) == 0 for i in range(3) if i != example]
    return all(others) and (where != FLAT or float(size_B[example]) > 0)
