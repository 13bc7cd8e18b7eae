"""Records a trainer can draw from: a length, and the examples at some indices.

Shapes: n = records, B = a batch; inputs are (n, ...) and targets (n,) or (n, ...).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from dpsrm.core.errors import InputError, need

Indices = npt.NDArray[np.integer[Any]]


class RecordSource(Protocol):
    """What a trainer needs from data: how many records, and those at given positions."""

    def __len__(self) -> int: ...

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Records:
    """All records in memory: `inputs` (n, ...) beside `targets` (n, ...).

    Edge cases: `take` of no index gives tensors of shape (0, ...); an index outside 0..n-1 raises.

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
        _need_finite(self.inputs, "features")
        _need_finite(self.targets, "targets")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The inputs and targets at `indices`, in their order, repeats included."""
        positions = _integers(indices)
        if self.inputs.device.type != "cpu":
            _need_inside(positions, len(self))
        at = torch.from_numpy(positions).to(self.inputs.device)
        try:
            return self.inputs.index_select(0, at), self.targets.index_select(0, at)
        except IndexError:  # on the CPU, torch has looked at every index already
            _need_inside(positions, len(self))
            raise


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
        _need_finite(torch.from_numpy(self.matrix.data), "features")
        _need_finite(self.targets, "targets")

    @classmethod
    def of(cls, records: Records) -> SparseRecords:
        """The same records without their zeros."""
        return cls(scipy.sparse.csr_array(records.inputs.numpy()), records.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The inputs and targets at `indices`, in their order, repeats included."""
        positions = _positions(indices, len(self))
        return csr_tensor(self.matrix[positions]), self.targets.index_select(0, torch.from_numpy(positions))


def csr_tensor(matrix: scipy.sparse.csr_array) -> Tensor:
    """A SciPy CSR array as a torch tensor."""
    starts, columns = (torch.from_numpy(a.astype(np.int64)) for a in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(starts, columns, values, size=matrix.shape, check_invariants=False)


@dataclass(frozen=True, eq=False)
class DatasetRecords:
    """A map-style `torch` dataset of (input, target) pairs, read when drawn.

    Edge cases: features are checked when they are drawn, since a dataset may be larger than memory;
    `take` of no index reads record 0 for its shape and returns tensors of shape (0, ...).

    >>> data = DatasetRecords(TensorDataset(torch.eye(3), torch.tensor([0, 1, 0])))
    >>> data.take(np.array([], dtype=int))[0].shape
    torch.Size([0, 3])
    """

    dataset: Dataset[Any]

    def __post_init__(self) -> None:
        need(
            not isinstance(self.dataset, IterableDataset),
            "a dataset must give records by index",
            dataset=type(self.dataset).__name__,
            remedy="use a map-style torch Dataset with __len__ and __getitem__",
        )
        need(len(self) > 0, "data must hold at least one record", dataset=type(self.dataset).__name__)

    def __len__(self) -> int:
        try:
            return len(cast(Any, self.dataset))
        except (TypeError, NotImplementedError) as error:
            raise InputError(f"a dataset must know its length; got {type(self.dataset).__name__}") from error

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Collate the records at `indices`, in their order, repeats included."""
        positions = _positions(indices, len(self)).tolist()
        batch = self._collated(positions or [0])
        need(
            isinstance(batch, (list, tuple)) and len(batch) == 2,
            "each record of a dataset must be a pair (input, target)",
            dataset=type(self.dataset).__name__,
        )
        inputs, targets = _inputs(batch[0]), _targets(batch[1])
        _need_finite(inputs, "features", rows=positions)
        return inputs[: len(positions)], targets[: len(positions)]

    def _collated(self, positions: list[int]) -> Any:
        """One batch of the records at `positions`; an error if they cannot be collated."""
        records = [self.dataset[i] for i in positions]
        try:
            return default_collate(records)
        except (RuntimeError, TypeError, ValueError) as error:
            kind = type(self.dataset).__name__
            raise InputError(f"records must be alike, to collate them; got {kind}: {str(error)[:200]}") from error


def as_records(data: object, dtype: torch.dtype | None = None) -> RecordSource:
    """Make a record source of a pair of arrays, a torch dataset, or a record source.

    Floating inputs become `dtype` (torch's default when None); integer or boolean targets become int64.

    Args:
        data: `Records`, `SparseRecords`, `DatasetRecords`, a torch `Dataset` of pairs, or (inputs, targets) as NumPy
            arrays or tensors.
        dtype: the floating type of arrays' inputs.

    Edge cases: raises `InputError` for no record, lengths that differ, NaN or infinite features (also when
    only the conversion makes them infinite).

    >>> source = as_records((np.eye(2), np.array([True, False])))
    >>> source.take(np.array([0]))
    (tensor([[1., 0.]]), tensor([1]))
    """
    if isinstance(data, (Records, SparseRecords, DatasetRecords)):
        return data
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Dataset):
        return DatasetRecords(data)
    if isinstance(data, (tuple, list)):
        need(len(data) == 2, "data must be a pair (inputs, targets)", length=len(data))
        return Records(_inputs(data[0], dtype), _targets(data[1]))
    raise InputError(
        "data must be Records, a torch Dataset, or a pair of arrays (inputs, targets); "
        f"got {type(data).__name__}; give (X, y)"
    )


def _tensor(values: object, name: str) -> Tensor:
    """A tensor of an array's values, or an error that names the array."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.require(cast(Any, values), requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise InputError(f"{name} must be an array of numbers; got {kind}; encode text first") from error


def _inputs(values: object, dtype: torch.dtype | None = None) -> Tensor:
    """Inputs with their floats in one type; integers (token ids, pixels) stay what they are."""
    tensor = _tensor(values, "inputs")
    if dtype is None and not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype or torch.get_default_dtype())


def _targets(values: object) -> Tensor:
    """Targets: classes as int64, real numbers in torch's default type."""
    tensor = _tensor(values, "targets")
    return tensor.to(torch.get_default_dtype() if tensor.is_floating_point() else torch.int64)


def _positions(indices: Indices, n: int) -> npt.NDArray[np.int64]:
    """Indices as int64, each inside 0..n-1."""
    positions = _integers(indices)
    _need_inside(positions, n)
    return positions


def _integers(indices: Indices) -> npt.NDArray[np.int64]:
    """Indices as a writable vector of int64."""
    array = np.asarray(indices)
    need(array.ndim == 1, "indices must be one-dimensional", shape=array.shape)
    if array.dtype.kind not in "iu" and array.size:
        need(False, "indices must be integers", dtype=str(array.dtype))
    return array.astype(np.int64, copy=not array.flags.writeable)


def _need_inside(positions: npt.NDArray[np.int64], n: int) -> None:
    """Refuse positions outside 0..n-1."""
    if positions.size:
        least, largest = int(positions.min()), int(positions.max())
        need(least >= 0 and largest < n, "indices must lie in 0..n-1", n=n, least=least, largest=largest)


def _need_finite(values: Tensor, name: str, *, rows: list[int] | None = None) -> None:
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
