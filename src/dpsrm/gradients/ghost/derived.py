"""Tensors computed from parameters alone: a slice, a class token for every position, a standardised weight.

They are used like parameters, and an example's gradient of one is found like a parameter's. The computation in front of
it holds no example, so each example's gradient goes back through it to the parameters, all examples at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.tap import depend
from dpsrm.gradients.ghost.terms import Rows, Term, added

RANDOM = frozenset({F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout})
"""Functions that draw: what they make of a parameter is another tensor for every example."""

_NOTHING = torch.empty(0, device="cpu")


@dataclass
class Derived:
    """What a pass computed from parameters alone.

    `made` are the tensors by name; they keep the graph that leads back to the `parameters`.
    """

    parameters: Mapping[str, Tensor]
    made: dict[str, Tensor] = field(default_factory=dict)
    _early: dict[str, list[Term]] | None = None
    _versions: dict[str, int] = field(default_factory=dict)
    _proved: dict[int, bool] = field(default_factory=dict)

    def name(self, tensor: Tensor, of: str) -> str:
        """A name for a tensor; it is kept, so that its identity stays its own."""
        name = f"{of}#{len(self.made)}"
        self.made[name], self._versions[name] = tensor, tensor._version
        return name

    @property
    def changed(self) -> list[str]:
        """Tensors that were written into after they were made: an earlier use's gradient has no way back."""
        return [name for name, tensor in self.made.items() if tensor._version != self._versions[name]]

    def free(self, tensor: Tensor, example: Tensor) -> bool:
        """Whether vmap says that the tensor is the same for all examples; asked once for each that was made."""
        if id(tensor) not in self._proved:
            (depends,) = depend(example, tensor)
            self._proved[id(tensor)] = not depends
        return self._proved[id(tensor)]

    def settle(self, terms: dict[str, list[Term]], examples: int) -> None:
        """After the pass: let go of the parameters, if the gradients brought back to them take less memory."""
        used = [self.made[name] for name in terms if name in self.made]
        if examples * sum(map(Tensor.numel, used)) > sum(map(Tensor.numel, self.parameters.values())):
            return
        self._early = self._pulled({name: found for name, found in terms.items() if name in self.made})
        self.parameters, self.made = {}, dict.fromkeys(self.made, _NOTHING)

    def pulled(self, terms: dict[str, list[Term]]) -> dict[str, list[Term]]:
        """The terms with those of `made` tensors brought back to the parameters."""
        back = self._pulled(terms) if self._early is None else self._early
        kept = {name: found for name, found in terms.items() if name not in self.made}
        return {**kept, **{name: [*kept.get(name, []), *rows] for name, rows in back.items()}}

    def _pulled(self, terms: dict[str, list[Term]]) -> dict[str, list[Term]]:
        """What `made` tensors bring back to the parameters."""
        used = [(self.made[name], added(found)) for name, found in terms.items() if name in self.made]
        if not used:
            return {}
        rows = [rows_BP.view(len(rows_BP), *tensor.shape) for tensor, rows_BP in used]
        found = _pull([tensor for tensor, _ in used], list(self.parameters.values()), rows)
        back = zip(self.parameters, found, strict=True)
        return {name: [Rows.of(rows_B)] for name, rows_B in back if rows_B is not None}


def _pull(outputs: list[Tensor], inputs: list[Tensor], rows: list[Tensor]) -> Any:
    """Each example's gradients of `outputs` as gradients of `inputs`, one vectorised backward pass."""
    return torch.autograd.grad(
        outputs, inputs, grad_outputs=rows, is_grads_batched=True, retain_graph=True, allow_unused=True
    )


def values_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """A call's arguments, and what lists of them hold."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value
