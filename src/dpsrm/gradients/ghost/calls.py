"""What a recorded pass keeps of one use of a parameter: enough to say, later, each example's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from dpsrm.core.errors import IsolationError, need
from dpsrm.gradients.ghost.rules import Rule
from dpsrm.gradients.ghost.tap import Tapped, tap
from dpsrm.gradients.ghost.terms import Rows, Term

Key = tuple[str, tuple[str, ...], int]
"""Which call: its function's rule, the parameters it uses, and how many such calls came before."""

_CHANGED = "a layer's input must not be changed in place later"
_WRITTEN = (
    "what an example makes of the parameter {} must not be changed in place: the examples share its memory; make a new "
    'tensor (masked_fill instead of masked_fill_), or use performance.engine = "loop"'
)
_UNEQUAL = (
    "what the layer of {} is given is mostly the same at two points, but not for these parameters and examples: a step "
    'of a function (round, sign, argmax) makes it so; use performance.engine = "functional", or "loop"'
)


def _equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same numbers; what is no number is like another."""
    return torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())


@dataclass
class Call(Tapped):
    """A recorded call of a function that has a rule; `x` is its input for all examples, examples in front."""

    key: Key = field(kw_only=True)
    rule: Rule = field(kw_only=True)
    arguments: dict[str, Any] = field(kw_only=True)
    names: dict[str, str] = field(kw_only=True)
    data: str = field(kw_only=True)
    seed: Tensor = field(kw_only=True)
    run: Callable[[Tensor], Tensor] | None = None
    """What makes the output of the input, if the call sees the input only."""
    x: Tensor | None = None
    shape: tuple[int, ...] = ()
    version: int = 0
    rooted: bool = False
    held: tuple[int, int, int] = (0, 0, 0)
    """Where the input was, and how many numbers it and the output's gradient had."""
    _terms: dict[str, Term] = field(default_factory=dict)

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """Remember the input, and tap the output (which is still to be made, if there is `run`)."""
        (x,) = inputs if self.run is None else (output,)
        if x is None:
            return output
        output = output if self.run is None else self.run(x)
        self.x, self.version, self.rooted, self.shape = x.detach(), x._version, not x.requires_grad, output.shape
        return tap(output, self.seed, self)

    def kept(self, x: Tensor, output: Tensor) -> None:
        """Remember input and output of all examples, as vmap handed them out at the end of the pass."""
        self.x, self.version, self.rooted, self.shape = x.detach(), x._version, not x.requires_grad, output.shape
        self.place = get_gradient_edge(output) if output.requires_grad else None

    def share(self, first: Call, *, surely: bool) -> None:
        """Use the first point's input if this one does not depend on the parameters, and is equal.

        Args:
            surely: it must be; for what one example's numbers decide would change how all others are computed.
        """
        if not self.rooted or self.x is None or first.x is None:
            return
        equal = _equal(self.x, first.x)
        if surely and not equal:
            raise IsolationError(_UNEQUAL.format(", ".join(self.key[1])))
        if equal:
            self._need_unchanged()
            self.x, self.version = first.x, first.version

    def settle(self) -> None:
        """Find the terms after the pass, and let go of what only the pass needs, above all the parameters."""
        self._need_unchanged()
        assert self.x is not None
        grad = self.grad if self.grad is not None else self.x.new_zeros(self.shape)
        self.held = self.x.data_ptr(), self.x.numel(), 0 if self.grad is None else self.grad.numel()
        terms = self.rule.terms(grad, **{**self.arguments, self.data: self.x})
        self._terms = {name: self._small(terms[argument], argument) for argument, name in self.names.items()}
        self.arguments = {}
        if all(isinstance(term, Rows) and term.known for term in self._terms.values()):
            self.x = self.grad = None

    def _small(self, term: Term, argument: str) -> Term:
        """A term, computed now if its rows take no more memory than input and gradient: these can then go."""
        rows = self.shape[0] * self.arguments[argument].numel()
        if isinstance(term, Rows) and rows <= self.held[1] + self.held[2]:
            return Rows.of(term.compute())
        return term

    def _need_unchanged(self) -> None:
        """Refuse an input that was changed after it was used."""
        need(self.x is not None and self.x._version == self.version, _CHANGED, layer=self.key[1])

    def terms(self) -> dict[str, Term]:
        """One term per parameter."""
        return self._terms


@dataclass
class Copied(Tapped):
    """A parameter of which every example had its own copy: the copies' gradients are the examples' gradients.

    This serves every use for which there is no rule, all uses of one parameter together.
    """

    key: Key = field(kw_only=True)
    held: Tensor | None = None
    before: Tensor | None = None
    version: int = 0

    def saw(self, output: Tensor, inputs: list[Tensor | None]) -> Tensor:
        """Ask for the copies' gradients; all copies lie in the same memory."""
        self.held, self.version = output.detach(), output._version
        self.before = self.held[:1].clone()
        output = output.detach().requires_grad_()
        self.place = get_gradient_edge(output)
        return output

    def need_unchanged(self) -> None:
        """Refuse a copy that an example wrote into, by whatever way: all others would have read it."""
        if self.held is None or self.before is None:
            return
        if not _equal(self.held[:1], self.before) or self.held._version != self.version:
            raise IsolationError(_WRITTEN.format(self.key[1][0]))
        self.held = self.before = None

    def terms(self) -> dict[str, Term]:
        """The gradients as they came."""
        rows = self.grad
        return {} if rows is None else {self.key[1][0]: Rows(lambda: rows)}
