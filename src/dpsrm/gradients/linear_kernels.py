"""Compiled arithmetic of linear models over one batch.

A linear model's per-example gradient is residual ⊗ (x, 1), at any θ with the same (x, 1). So every part of a query is
(a combination of residuals) ⊗ (x, 1), its norm is |combination|·‖(x, 1)‖, and what an example contributes in all is
one vector u_C, the sum of its parts' clipped combinations, times (x, 1).

Shapes: n records, B examples of a batch, D features, C outputs, P = C·D (+ C with bias) parameters laid out as
weights (C, D) then bias (C), K points, M parts. Rows are CSR: row i holds `values[s]` in `columns[s]` for s from
`starts[i]` to `starts[i + 1]`; a dense matrix has no `columns` (an empty array) and D values in each row. Columns are
unsigned, and rows are sliced before they are looped over: Numba then leaves out its check for negative indices.

All of it stays in one file: Numba's cache on disk does not notice a change in another file's compiled function.
NaN must be seen, so `fastmath` never allows to assume there is none. It is `np.float64(x)` and not `float(x)`, which
Numba leaves in single precision.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from dpsrm.gradients.query import STABILITY
from dpsrm.gradients.standard_losses import BINARY, SQUARED

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Matrix = tuple[Array, Array, Array]
"""starts, columns, values."""
Rows = tuple[Array, Array, Array, Array, Array]
"""starts, columns, values, ‖(x, 1)‖² per row, target per row."""
Model = tuple[int, int, float]
"""Which loss, D, and 1 if there is a bias."""
Asked = tuple[Array, Array, float]
"""(clip, weight, 1 for AUTO-S) per part, (M, K) coefficients, the margin by which clip factors are shrunk."""

_exact = numba.njit(cache=True, nogil=True, error_model="numpy")
_sums = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_sums
def square_norms(starts: Array, columns: Array, values: Array, features: int, bias: float) -> tuple[bool, Floats]:
    """Whether every row's columns are increasing and below D, and ‖(x, 1)‖² of every row ((x) alone if `bias` is 0).

    A column twice in a row would break the norm, one beyond D the memory; after a False the norms mean nothing.
    """
    norms_n = np.empty(len(starts) - 1)
    valid = len(starts) > 0 and starts[0] == 0 and starts[-1] == len(values)
    for i in range(len(norms_n)):
        valid = valid and starts[i] <= starts[i + 1]
    if not valid:
        return False, norms_n
    for i in range(len(norms_n)):
        row, total = values[starts[i] : starts[i + 1]], 0.0
        for j in range(len(row)):
            total += np.float64(row[j]) * np.float64(row[j])
        norms_n[i] = total + bias
        last = -1
        for s in range(starts[i], starts[i + 1] if len(columns) > 0 else starts[i]):
            valid = valid and last < np.int64(columns[s]) < features
            last = np.int64(columns[s])
    return valid, norms_n


@_sums
def _logits(rows: Rows, picked_B: Array, model: Model, points_KP: Array, z_BKC: Array) -> None:
    """z = θ·x + bias for the picked rows, every point and output."""
    starts, columns, values = rows[0], rows[1], rows[2]
    D, bias, C = model[1], model[2], z_BKC.shape[2]
    for k in range(len(points_KP)):
        for c in range(C):
            weights_D = points_KP[k, c * D : (c + 1) * D]
            offset = points_KP[k, C * D + c] if bias == 1 else 0.0
            for r in range(len(picked_B)):
                start, stop, total = starts[picked_B[r]], starts[picked_B[r] + 1], 0.0
                row = values[start:stop]
                if len(columns) == 0:
                    for j in range(len(row)):
                        total += np.float64(row[j]) * weights_D[j]
                else:
                    where = columns[start:stop]
                    for s in range(len(row)):
                        total += np.float64(row[s]) * weights_D[where[s]]
                z_BKC[r, k, c] = total + offset


@_sums
def _accumulate(rows: Rows, picked_B: Array, model: Model, u_BC: Array, total_P: Array) -> None:
    """total += Σ u ⊗ (x, 1) over the picked rows; u = 0 leaves a row out, whatever it holds."""
    starts, columns, values = rows[0], rows[1], rows[2]
    D, bias, C = model[1], model[2], u_BC.shape[1]
    for c in range(C):
        into_D = total_P[c * D : (c + 1) * D]
        for r in range(len(picked_B)):
            start, stop, u = starts[picked_B[r]], starts[picked_B[r] + 1], u_BC[r, c]
            if u == 0:
                continue
            row = values[start:stop]
            if len(columns) == 0:
                for j in range(len(row)):
                    into_D[j] += u * np.float64(row[j])
            else:
                where = columns[start:stop]
                for s in range(len(row)):
                    into_D[where[s]] += u * np.float64(row[s])
            if bias == 1:
                total_P[C * D + c] += u


@_exact
def _losses(kind: int, targets_B: Array, z_BKC: Array) -> float:
    """The sum of the finite losses at the first point; a class below 0 is one to ignore, as torch does."""
    losses = 0.0
    for r in range(len(targets_B)):
        z, target = z_BKC[r, 0, 0], targets_B[r]
        if kind == BINARY:
            loss = max(z, 0.0) - z * target + math.log1p(math.exp(-abs(z)))
        elif kind == SQUARED:
            loss = (z - target) * (z - target) / 2
        elif target < 0:
            loss = 0.0
        else:
            top = z_BKC[r, 0].max()
            loss = top + math.log(np.exp(z_BKC[r, 0] - top).sum()) - z_BKC[r, 0, int(target)]
        losses += loss if math.isfinite(loss) else 0.0
    return losses


@_exact
def _residuals(kind: int, targets_n: Array, picked_B: Array, z_BKC: Array) -> None:
    """Turn logits into the loss's derivative by them, in place."""
    for r in range(len(picked_B)):
        target = targets_n[picked_B[r]]
        for k in range(z_BKC.shape[1]):
            z = z_BKC[r, k, 0]
            if kind == BINARY:
                tail = math.exp(-abs(z))
                z_BKC[r, k, 0] = (1 / (1 + tail) if z >= 0 else tail / (1 + tail)) - target
            elif kind == SQUARED:
                z_BKC[r, k, 0] = z - target
            elif target < 0:
                z_BKC[r, k] = 0.0
            else:
                shares_C = np.exp(z_BKC[r, k] - z_BKC[r, k].max())
                z_BKC[r, k] = shares_C / shares_C.sum()
                z_BKC[r, k, int(target)] -= 1


@_exact
def _contributions(norms_n: Array, picked_B: Array, r_BKC: Array, query: Asked, u_BC: Array, norms_BM: Array) -> None:
    """u = Σ weight·factor·(combination of residuals) over the parts; their norms before clipping go to `norms_BM`.

    A row of which a residual or ‖(x, 1)‖ is not finite has u = 0 and norms NaN.
    """
    parts, coefficients_MK, margin = query
    K, C = r_BKC.shape[1], r_BKC.shape[2]
    combined_C = np.empty(C)
    for r in range(len(picked_B)):
        finite, length = True, math.sqrt(norms_n[picked_B[r]])
        for c in range(C):
            u_BC[r, c] = 0.0
            for k in range(K):
                finite = finite and math.isfinite(r_BKC[r, k, c])
        finite = finite and math.isfinite(length)
        for m in range(len(parts)):
            clip, weight = parts[m, 0], parts[m, 1]
            norms_BM[r, m] = 0.0 if finite else np.nan
            if weight == 0 or not finite:
                continue
            square = 0.0
            for c in range(C):
                combined = 0.0
                for k in range(K):
                    combined += coefficients_MK[m, k] * r_BKC[r, k, c]
                combined_C[c] = combined
                square += combined * combined
            norm = math.sqrt(square) * length
            norms_BM[r, m] = norm
            factor = 1.0
            if parts[m, 2] == 1:
                factor = clip * (1 - margin) / (norm + STABILITY)
            elif norm > clip:
                factor = clip * (1 - margin) / norm
            for c in range(C):
                u_BC[r, c] += weight * factor * combined_C[c]


@_exact
def clipped_sum(
    matrix: Matrix, targets_B: Array, model: Model, points_KP: Array, query: Asked, total_P: Array
) -> tuple[bool, float, Floats, Floats]:
    """Add all rows' contributions to the total.

    Returns whether the matrix is valid (if not, the rest means nothing); the sum of the finite losses at the first
    point; per part, the number of rows longer than its clip, and at the end the number of rows that are not finite and
    were left out; the norms (B, M) before clipping.
    """
    B, K, M, C = len(targets_B), len(points_KP), len(query[0]), len(total_P) // (model[1] + int(model[2]))
    everyone_B = np.arange(B)
    z_BKC, u_BC, norms_BM, counts = np.empty((B, K, C)), np.empty((B, C)), np.empty((B, M)), np.zeros(M + 1)
    starts, columns, values = matrix
    valid, squares_B = square_norms(starts, columns, values, model[1], model[2])
    if not valid:
        return False, 0.0, counts, norms_BM
    rows = starts, columns, values, squares_B, targets_B
    _logits(rows, everyone_B, model, points_KP, z_BKC)
    loss = _losses(model[0], targets_B, z_BKC)
    _residuals(model[0], targets_B, everyone_B, z_BKC)
    _contributions(squares_B, everyone_B, z_BKC, query, u_BC, norms_BM)
    _accumulate(rows, everyone_B, model, u_BC, total_P)
    for r in range(B):
        for m in range(M):
            counts[m] += norms_BM[r, m] > query[0][m, 0]
        counts[M] += math.isnan(norms_BM[r, 0])
    return True, loss, counts, norms_BM
