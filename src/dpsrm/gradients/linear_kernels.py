"""Compiled arithmetic of linear models: one batch, and a block of steps of many walks.

A linear model's per-example gradient is residual ⊗ (x, 1), at any θ with the same (x, 1). So every part of a query is
(a combination of residuals) ⊗ (x, 1), its norm is |combination|·‖(x, 1)‖, and what an example contributes in all is
one vector u_C, the sum of its parts' clipped combinations, times (x, 1).

Shapes: n records, B examples of a batch, D features, C outputs, P = C·D (+ C with bias) parameters laid out as
weights (C, D) then bias (C), K points, M parts. Rows are CSR: row i holds `values[s]` in `columns[s]` for s from
`starts[i]` to `starts[i + 1]`; a dense matrix has no `columns` (an empty array) and D values in each row.

All of it stays in one file: Numba's cache on disk does not notice a change in another file's compiled function.
NaN must be seen, so `fastmath` never allows to assume there is none.
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
Rows = tuple[Array, Array, Array, Array, Array]
"""starts, columns, values, ‖(x, 1)‖² per row, target per row."""
Model = tuple[int, int, float]
"""Which loss, D, and 1 if there is a bias."""
Asked = tuple[Array, Array, float]
"""(clip, weight, 1 for AUTO-S) per part, (M, K) coefficients, the margin by which clip factors are shrunk."""
Scratch = tuple[Array, Array, Array, Array]
"""Room for one row: logits or residuals (K, C), norms (M), its contribution (C), one part of it (C)."""

State = tuple[Array, Array, Array, Array]
"""A walk's θ and θ before (both in the model's type), direction and running output (both float64)."""
Steps = tuple[Array, Array, Array, Array, Array]
"""Per step: parts (M, 3), coefficients (M, K), points (K, 2) as multiples of θ and of θ before, (K, M, batch), and
(keep, gain, rate, share of θ in the output)."""
Drawn = tuple[Array, Array, Array]
"""Where each step's indices start (T + 1), the indices, and the noise (T, P) of the released means."""

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
        total = bias
        for s in range(starts[i], starts[i + 1]):
            total += float(values[s]) * float(values[s])
        norms_n[i] = total
        last = -1
        for s in range(starts[i], starts[i + 1] if len(columns) > 0 else starts[i]):
            valid = valid and last < columns[s] < features
            last = columns[s]
    return valid, norms_n


@_sums
def _dot(start: int, stop: int, columns: Array, values: Array, weights_D: Array) -> float:
    """weights · x for one row."""
    total = 0.0
    if len(columns) == 0:
        for j in range(stop - start):
            total += float(values[start + j]) * weights_D[j]
    else:
        for s in range(start, stop):
            total += float(values[s]) * weights_D[columns[s]]
    return total


@_sums
def _add(factor: float, start: int, stop: int, columns: Array, values: Array, into_D: Array) -> None:
    """into += factor·x for one row."""
    if len(columns) == 0:
        for j in range(stop - start):
            into_D[j] += factor * float(values[start + j])
    else:
        for s in range(start, stop):
            into_D[columns[s]] += factor * float(values[s])


@_exact
def _loss(kind: int, target: float, z_C: Array) -> float:
    """The loss of one example's logits; a target below 0 is one to ignore, as in torch's cross-entropy."""
    z = z_C[0]
    if kind == BINARY:
        return max(z, 0.0) - z * target + math.log1p(math.exp(-abs(z)))
    if kind == SQUARED:
        return (z - target) * (z - target) / 2
    if target < 0:
        return 0.0
    top, total = z_C.max(), 0.0
    for c in range(len(z_C)):
        total += math.exp(z_C[c] - top)
    return top + math.log(total) - z_C[int(target)]


@_exact
def _residual(kind: int, target: float, z_C: Array) -> None:
    """Turn logits into the loss's derivative by them, in place."""
    if kind == BINARY:
        tail = math.exp(-abs(z_C[0]))
        z_C[0] = (1 / (1 + tail) if z_C[0] >= 0 else tail / (1 + tail)) - target
    elif kind == SQUARED:
        z_C[0] -= target
    elif target < 0:
        z_C[:] = 0.0
    else:
        top, total = z_C.max(), 0.0
        for c in range(len(z_C)):
            z_C[c] = math.exp(z_C[c] - top)
            total += z_C[c]
        for c in range(len(z_C)):
            z_C[c] /= total
        z_C[int(target)] -= 1


@_exact
def _combine(r_KC: Array, coefficients_K: Array, into_C: Array) -> float:
    """into = Σ_k coefficient·residual; returns its norm."""
    square = 0.0
    for c in range(len(into_C)):
        into_C[c] = 0.0
        for k in range(len(r_KC)):
            into_C[c] += coefficients_K[k] * r_KC[k, c]
        square += into_C[c] * into_C[c]
    return math.sqrt(square)


@_exact
def _contribution(length: float, query: Asked, scratch: Scratch) -> bool:
    """u_C = Σ weight·factor·(combination of residuals) over the parts; their norms before clipping go to `norms_M`.

    False, and u_C = 0, if a residual or `length` = ‖(x, 1)‖ is not finite.
    """
    parts, coefficients_MK, margin = query
    r_KC, norms_M, u_C, part_C = scratch
    u_C[:] = 0.0
    norms_M[:] = np.nan
    finite = math.isfinite(length)
    for k in range(len(r_KC)):
        for c in range(len(u_C)):
            finite = finite and math.isfinite(r_KC[k, c])
    if not finite:
        return False
    for m in range(len(parts)):
        clip, weight, automatic = parts[m, 0], parts[m, 1], parts[m, 2]
        if weight == 0:
            continue
        norm = _combine(r_KC, coefficients_MK[m], part_C) * length
        norms_M[m] = norm
        factor = 1.0
        if automatic == 1:
            factor = clip * (1 - margin) / (norm + STABILITY)
        elif norm > clip:
            factor = clip * (1 - margin) / norm
        for c in range(len(u_C)):
            u_C[c] += weight * factor * part_C[c]
    return True


@_exact
def _logits(i: int, rows: Rows, model: Model, points_KP: Array, z_KC: Array) -> None:
    """Row i's logits at every point."""
    starts, columns, values = rows[0], rows[1], rows[2]
    D, bias, C = model[1], model[2], z_KC.shape[1]
    for k in range(len(points_KP)):
        for c in range(C):
            z = _dot(starts[i], starts[i + 1], columns, values, points_KP[k, c * D : (c + 1) * D])
            z_KC[k, c] = z + (points_KP[k, C * D + c] if bias == 1 else 0.0)


@_exact
def _add_row(i: int, rows: Rows, model: Model, query: Asked, scratch: Scratch, total_P: Array) -> bool:
    """Add row i's contribution, given its logits in the scratch; False if it is not finite and was left out."""
    starts, columns, values, norms_n, targets_n = rows
    kind, D, bias = model
    r_KC, u_C = scratch[0], scratch[2]
    for k in range(len(r_KC)):
        _residual(kind, targets_n[i], r_KC[k])
    if not _contribution(math.sqrt(norms_n[i]), query, scratch):
        return False
    for c in range(len(u_C)):
        _add(u_C[c], starts[i], starts[i + 1], columns, values, total_P[c * D : (c + 1) * D])
        if bias == 1:
            total_P[len(u_C) * D + c] += u_C[c]
    return True


@_exact
def clipped_sum(
    rows: Rows, model: Model, points_KP: Array, query: Asked, total_P: Array
) -> tuple[int, float, Floats, Floats]:
    """Add all rows' contributions to the total: (non-finite rows, sum of finite losses, clipped, largest norms).

    The last two are per part; a norm that is not a number counts as infinite.
    """
    M, C = len(query[0]), len(total_P) // (model[1] + int(model[2]))
    scratch = np.empty((len(points_KP), C)), np.empty(M), np.empty(C), np.empty(C)
    clipped_M, largest_M = np.zeros(M), np.zeros(M)
    nonfinite, losses = 0, 0.0
    for i in range(len(rows[4])):
        _logits(i, rows, model, points_KP, scratch[0])
        loss = _loss(model[0], rows[4][i], scratch[0][0])
        losses += loss if math.isfinite(loss) else 0.0
        nonfinite += not _add_row(i, rows, model, query, scratch, total_P)
        for m in range(M):
            norm = scratch[1][m]
            clipped_M[m] += norm > query[0][m, 0]
            largest_M[m] = max(largest_M[m], math.inf if math.isnan(norm) else norm)
    return nonfinite, losses, clipped_M, largest_M


@_exact
def walk_block(rows: Rows, model: Model, state: State, steps: Steps, drawn: Drawn, extra: tuple[float, float]) -> None:
    """Take T steps of one walk, in place: clipped sum + noise → direction → θ → running output.

    The sums live and die in here; what leaves is a function of sums with their noise added.
    """
    theta_P, previous_P, direction_P, kept_P = state
    parts_TM, coefficients_TMK, points_TK, counts_T, moves_T = steps
    starts_T, indices, noise_TP = drawn
    margin, strength = extra
    P = len(theta_P)
    C = P // (model[1] + int(model[2]))
    points_KP, total_P, step = np.empty((points_TK.shape[1], P)), np.empty(P), np.empty(2, theta_P.dtype)
    for t in range(len(counts_T)):
        K, M, batch = counts_T[t]
        keep, gain, step[0], share = moves_T[t]
        for k in range(K):
            points_KP[k] = points_TK[t, k, 0] * theta_P + points_TK[t, k, 1] * previous_P
        scratch = np.empty((K, C)), np.empty(M), np.empty(C), np.empty(C)
        query = parts_TM[t, :M], coefficients_TMK[t, :M, :K], margin
        total_P[:] = 0.0
        for i in indices[starts_T[t] : starts_T[t + 1]]:
            _logits(i, rows, model, points_KP[:K], scratch[0])
            _add_row(i, rows, model, query, scratch, total_P)
        for j in range(P):
            direction_P[j] = gain * (total_P[j] / batch + noise_TP[t, j]) + keep * direction_P[j]
            here = float(theta_P[j])
            square = 1 + here * here
            step[1] = direction_P[j] + 2 * strength * here / (square * square)
            previous_P[j] = theta_P[j]
            theta_P[j] = theta_P[j] - step[0] * step[1]
            kept_P[j] += share * (float(theta_P[j]) - kept_P[j])
