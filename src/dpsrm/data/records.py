"""Records a trainer can draw from: a length, and the examples at some indices.

Shapes: n = records, B = a batch; inputs are (n, ...) and targets (n,) or (n, ...).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.tree import leaves, mapped
from dpsrm.data.conversion import Indices, as_integers, as_positions, need_inside


def need_finite(values: Tensor, name: str, *, rows: list[int] | None = None) -> None:
    """Refuse NaN and infinity, naming where (counted from 0, as arrays are)."""
    if not values.is_floating_point() or torch.isfinite(values).all():
        return
    row, *column = torch.nonzero(~torch.isfinite(values))[0].tolist()
    value = values[row].flatten()[~torch.isfinite(values[row].flatten())][0].item()
    need(
        False,
        f"{name} must be finite",
        row=row if rows is None else rows[row],
        column=column[0] if len(column) == 1 else tuple(column),
        value=value,
        remedy="remove the record or replace the value by a fixed one",
    )


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
    need_norm(float(norms[row]), row)


def need_norm(norm: float, row: int) -> None:
    """Refuse the longest record if it is too long."""
    need(
        norm <= LONGEST,
        f"records whose scale is not declared must have a norm of at most {LONGEST:g}",
        row=row,
        norm=round(norm, 1),
        remedy="divide each column by its public range, or save a table (.csv), whose columns are encoded whatever "
        "their scale; for columns of one kind (counts, pixels) --set data.normalise=true scales each record to norm 1; "
        "--set data.normalise=false takes them as they are",
    )


@dataclass(frozen=True, eq=False)
class SparseRecords:
    """Records with mostly zero features, kept by row: `matrix` is a SciPy CSR array (n, D), `targets` a tensor (n,).

    Edge cases: `take` gives the inputs as `torch.sparse_csr`, which only the linear engine (and nn.Linear) can read;
    repeated entries are summed and columns sorted at the start.

    >>> data = SparseRecords.of(Records(torch.eye(3), torch.tensor([0, 1, 0])))
    >>> data.take(np.array([2, 0]))[0].to_dense().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    matrix: scipy.sparse.csr_array
    targets: Tensor

    def __post_init__(self) -> None:
        n = self.matrix.shape[0]
        need(
            n == len(self.targets), "inputs and targets must have the same length", inputs=n, targets=len(self.targets)
        )
        need(n > 0, "data must hold at least one record", inputs=self.matrix.shape)
        self.matrix.sum_duplicates()
        need_finite(torch.from_numpy(self.matrix.data), "features")
        need_finite(self.targets, "targets")

    @classmethod
    def of(cls, records: Records) -> SparseRecords:
        """The same records without their zeros."""
        return cls(scipy.sparse.csr_array(records.inputs.numpy()), records.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The inputs and targets at `indices`, in their order, repeats included."""
        at = as_positions(indices, len(self))
        return csr_tensor(self.matrix[at]), self.targets.index_select(0, torch.from_numpy(at))


def csr_tensor(matrix: scipy.sparse.csr_array) -> Tensor:
    """A SciPy CSR array as a torch tensor."""
    starts, columns = (torch.from_numpy(a.astype(np.int64)) for a in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(starts, columns, values, size=matrix.shape, check_invariants=False)
