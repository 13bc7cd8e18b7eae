"""One recorded forward and backward pass: what every use of a parameter says about each example's gradient."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dpsrm.core.tree import Bundles, leaves
from dpsrm.gradients.back import gradients_at
from dpsrm.gradients.batch import Batch, examples
from dpsrm.gradients.ghost.calls import Call, Copied, Key
from dpsrm.gradients.ghost.derived import Derived
from dpsrm.gradients.ghost.kept import Shown
from dpsrm.gradients.ghost.recorder import AnyCall, Recorder
from dpsrm.gradients.ghost.terms import Rows, Term
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.own import Own
from dpsrm.gradients.passes import Pass, for_each
from dpsrm.gradients.seen_functions import fresh_back
from dpsrm.gradients.torch_state import copied

Shared = frozenset[Key] | None
"""The calls whose inputs are the same at all points; None: those of which that happens to be so."""


@dataclass(frozen=True)
class Recording:
    """What one pass recorded: calls, losses, and the parameters that were used without being recorded."""

    calls: tuple[AnyCall, ...]
    losses_B: Tensor
    leaks: tuple[str, ...]
    derived: Derived = field(repr=False)

    def terms(self) -> dict[str, list[Term]]:
        """All terms of each parameter."""
        return self.derived.pulled(_terms(self.calls))

    @property
    def numbers(self) -> int:
        """How many numbers of inputs and output gradients are kept per example."""
        held = [call.held for call in self.calls if isinstance(call, Call)]
        copies = sum(call.grad.numel() for call in self.calls if isinstance(call, Copied) and call.grad is not None)
        numbers = sum({at: inputs for at, inputs, _ in held}.values()) + sum(gradients for *_, gradients in held)
        return (numbers + copies) // max(1, len(self.losses_B))

    def like(self, first: Recording) -> frozenset[Key]:
        """The calls whose inputs are kept once for both."""
        mine, others = ({c.key: c.x for c in each.calls if isinstance(c, Call)} for each in (self, first))
        return frozenset(key for key, x in mine.items() if x is not None and x is others.get(key))

    @property
    def tensors(self) -> list[Tensor]:
        """Losses, and what the calls recorded, each with a row per example."""
        calls = [call for call in self.calls if isinstance(call, Call)]
        inputs = [call.x for call in calls if call.x is not None]
        known = [
            term.rows() for call in calls for term in call.terms().values() if isinstance(term, Rows) and term.known
        ]
        return [self.losses_B, *inputs, *known, *(call.grad for call in self.calls if call.grad is not None)]


def record(
    objective: Objective,
    point_P: Tensor,
    batch: Batch,
    *,
    steady: bool = True,
    first: Recording | None = None,
    shown: Shown = None,
    shared: Shared = None,
) -> Recording:
    """One pass at `point_P` over a batch of one example or more, forward and backward through Σ losses.

    Args:
        steady: as in `for_each`.
        first: what another point recorded: inputs that are the same there are kept once.
        shared: the calls whose inputs are.
        shown: the calls that must be shown while they run; if others must too, that is a `NotKeptError`.
    """
    with torch.enable_grad(), objective.explained(point_P, batch):
        own = objective.layout.split(copied(point_P, room=torch.float64))  # what a module writes into it is lost
        parameters = {name: p.detach().requires_grad_() for name, p in own.items()}
        run, sizes = objective.ready(), _sizes(batch) if objective.way is Way.BATCH else None
        frozen = run.values.values() if shown is not None else ()  # else as torch has it: something did not fit
        recorder = Recorder(parameters, frozen, batch=sizes, shown=shown)
        losses_B = _losses(run, parameters, recorder, batch, steady=steady)
        leaks = _backward(recorder, losses_B, objective.own) if losses_B.requires_grad else ()
    if not leaks:
        recorder.kept.check()
        _settle(recorder, first, len(losses_B), shared)
    return Recording(tuple(recorder.calls), losses_B.detach(), leaks, recorder.derived)


def _terms(calls: Iterable[AnyCall]) -> dict[str, list[Term]]:
    """All terms of each parameter, and of each tensor that was derived from some."""
    found: dict[str, list[Term]] = {}
    for call in calls:
        for name, term in call.terms().items():
            found.setdefault(name, []).append(term)
    return found


def _settle(recorder: Recorder, first: Recording | None, examples: int, shared: Shared) -> None:
    """Find every call's terms; the pass's copy of the parameters is let go, unless much was derived from them."""
    others = {call.key: call for call in first.calls} if first is not None else {}
    for call in recorder.calls:
        other = others.get(call.key)
        if isinstance(call, Call):
            if isinstance(other, Call) and (shared is None or call.key in shared):
                call.share(other, surely=shared is not None)
            call.settle()
        else:
            call.need_unchanged()
    recorder.derived.settle(_terms(recorder.calls), examples)


def _sizes(batch: Batch) -> tuple[int, int]:
    """How many examples there are, and how many rows each has."""
    return examples(batch), batch.counts.shape[1] if isinstance(batch, Bundles) else 1


def _losses(run: Pass, parameters: dict[str, Tensor], recorder: Recorder, batch: Batch, *, steady: bool) -> Tensor:
    """The losses of the recorded forward pass."""
    if recorder.batch is not None:
        with recorder:
            return run.batch(parameters, batch)

    def one(numbered: tuple[Batch, Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, recorder.example = numbered
        with recorder:
            return run.one(parameters, x), recorder.kept.tensors()

    given = leaves(batch)
    numbered = (batch, torch.zeros(examples(batch), device=given[0].device))
    losses_B, kept = for_each(one, numbered, steady=steady)
    recorder.kept.hand_out(kept, given)
    return cast(Tensor, losses_B)


def _backward(recorder: Recorder, losses_B: Tensor, own: Own) -> tuple[str, ...]:
    """Give every call its output's gradient; the names of parameters that leak. None may go to the user's own."""
    tapped = [call for call in recorder.calls if call.place is not None]
    parameters = recorder.derived.parameters
    places = [*(call.place for call in tapped), *parameters.values(), *own.trained.values()]
    with nullcontext() if recorder.batch is None else fresh_back():
        found = gradients_at(losses_B, places)
    for call, gradient in zip(tapped, found, strict=False):
        call.place, call.grad = None, gradient
    rest = found[len(tapped) :]
    own.refuse_gradients(rest[len(parameters) :])
    used = (name for name, g in zip(parameters, rest, strict=False) if g is not None)
    return (*used, *recorder.derived.changed)
