"""Records a trainer can draw from: a length, and the examples at some indices.

Shapes: n = records, B = a batch; inputs are (n, ...) and targets (n,) or (n, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.tree import leaves, mapped
from dpsrm.data.rows import Indices, as_integers, as_positions, need_finite, need_inside

LONGEST = 100.0
"""The longest record of LIBSVM text or arrays that is taken as it is without the user's word."""


class RecordSource(Protocol):
    """What a trainer needs from data: how many records, and a batch (a tree of tensors) of those at given positions."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> Any: ...


@dataclass(frozen=True, eq=False)
class Records:
    """All records in memory: `inputs` (n, ...) beside `targets` (n, ...).

    Edge cases: `take` of no index gives tensors of shape (0, ...); an index outside 0..n-1 raises.

    >>> import numpy as np
    >>> data = Records(torch.eye(3), torch.tensor([0, 1, 0]))
    >>> len(data), data.take(np.array([2, 0]))[0].tolist()
    (3, [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        x, y = tuple(self.inputs.shape), tuple(self.targets.shape)
        need(len(x) > 0 and len(y) > 0, "inputs and targets must have a row per record", inputs=x, targets=y)
        need(x[0] == y[0], "inputs and targets must have the same length", inputs=x[0], targets=y[0])
        need(x[0] > 0, "data must hold at least one record", inputs=x)
        need_finite(self.inputs, "features")
        need_finite(self.targets, "targets")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The inputs and targets at `indices`, in their order, repeats included."""
        positions = as_integers(indices)
        if self.inputs.device.type != "cpu":
            need_inside(positions, len(self))
        at = torch.from_numpy(positions).to(self.inputs.device)
        try:
            return self.inputs.index_select(0, at), self.targets.index_select(0, at)
        except IndexError:  # on the CPU, torch has looked at every index already
            need_inside(positions, len(self))
            raise


@dataclass(frozen=True, eq=False)
class TreeRecords:
    """All records in memory as a tree of tensors: a dictionary of token ids, masks and labels, for instance.

    >>> import numpy as np
    >>> data = TreeRecords({"ids": torch.eye(3), "label": torch.tensor([0, 1, 0])})
    >>> len(data), data.take(np.array([1]))["label"].tolist()
    (3, [1])
    """

    tree: Any

    def __post_init__(self) -> None:
        tensors = leaves(self.tree)
        good = len(tensors) > 0 and all(isinstance(tensor, Tensor) and tensor.dim() > 0 for tensor in tensors)
        need(good, "records are a tree of tensors with a row per record", got=[type(t).__name__ for t in tensors][:5])
        sizes = sorted({len(tensor) for tensor in tensors})
        need(len(sizes) == 1, "every tensor must have the same number of rows", rows=sizes)
        need(sizes[0] > 0, "data must hold at least one record")
        for tensor in tensors:
            need_finite(tensor, "features")

    def __len__(self) -> int:
        return len(leaves(self.tree)[0])

    def take(self, indices: Indices) -> Any:
        """The records at `indices`, in their order, repeats included."""
        at = torch.from_numpy(as_positions(indices, len(self)))
        return mapped(lambda tensor: tensor.index_select(0, at.to(tensor.device)), self.tree)


def need_scale(records: Records) -> None:
    """Refuse numbers far from any scale a model can start from, which nobody declared.

    This looks at private records, but only to refuse: whoever trains was not told anything but this error.
    """
    norms = records.inputs.flatten(1).norm(dim=1)
    row = int(norms.argmax())
    need(
        float(norms[row]) <= LONGEST,
        f"records whose scale is not declared must have a norm of at most {LONGEST:g}",
        row=row,
        norm=round(float(norms[row]), 1),
        remedy="scale each record to norm 1 by --set data.normalise=true, or divide the features by public ranges; "
        "--set data.normalise=false takes them as they are",
    )
