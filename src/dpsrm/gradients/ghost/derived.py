"""Tensors computed from parameters alone: a slice, a class token for every position, a standardised weight.

They are used like parameters, and an example's gradient of one is found like a parameter's. The computation in front of
it holds no example, so each example's gradient goes back through it to the parameters, all examples at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.tap import depend
from dpsrm.gradients.ghost.terms import Rows, Term, added

RANDOM = frozenset({F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout})
"""Functions that draw: what they make of a parameter is another tensor for every example."""


@dataclass
class Derived:
    """What a pass computed from parameters alone.

    `made` are the tensors by name; they keep the graph that leads back to the `parameters`.
    """

    parameters: Mapping[str, Tensor]
    made: dict[str, Tensor] = field(default_factory=dict)
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

    def pulled(self, terms: dict[str, list[Term]]) -> dict[str, list[Term]]:
        """The terms with those of `made` tensors brought back to the parameters."""
        kept = {name: found for name, found in terms.items() if name not in self.made}
        used = [(self.made[name], added(found)) for name, found in terms.items() if name in self.made]
        if not used:
            return kept
        rows = [rows_BP.view(len(rows_BP), *tensor.shape) for tensor, rows_BP in used]
        found = _pull([tensor for tensor, _ in used], list(self.parameters.values()), rows)
        for name, rows_B in zip(self.parameters, found, strict=True):
            if rows_B is not None:
                kept.setdefault(name, []).append(Rows(partial(_itself, rows_B)))
        return kept


def _itself(rows_B: Tensor) -> Tensor:
    """Rows that are there already."""
    return rows_B


def _pull(outputs: list[Tensor], inputs: list[Tensor], rows: list[Tensor]) -> Any:
    """Each example's gradients of `outputs` as gradients of `inputs`, one vectorised backward pass."""
    return torch.autograd.grad(
        outputs, inputs, grad_outputs=rows, is_grads_batched=True, retain_graph=True, allow_unused=True
    )
