"""Records with mostly zero features."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.data.records import Indices, Records, as_positions, need_finite


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
