"""Compiled arithmetic of linear models over one batch.

A linear model's per-example gradient is residual ⊗ (x, 1), at any θ with the same (x, 1). So every part of a query is
(a combination of residuals) ⊗ (x, 1), its norm is ‖combination‖·‖(x, 1)‖, and what an example contributes in all is
one vector u_C, the sum of its parts' clipped combinations, times (x, 1). Everything is computed in float64, and what an
example contributes depends on nothing but that example; docs/decisions/linear-rounding.md bounds the rounding.

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

import numba
import numpy as np

from dpsrm.gradients.linear_types import Array, Asked, Floats, Model, People, Rows
from dpsrm.gradients.query import STABILITY
from dpsrm.gradients.standard_losses import BINARY, SQUARED

BLOCK = 1024
"""So many rows are added up before their sum is added to the total: short chains of additions round little."""
SMALLEST = 1e-200
"""A clip, or weight times clip, below this lets nothing through: products near it could underflow."""
_NEAR = 1 << 16
"""As many rows as hold so many numbers (8 rows at least) are used for all outputs at once: they stay in the cache."""
_NORMAL = 2.2250738585072014e-308
"""The smallest float64 that has all its digits."""

_exact = numba.njit(cache=True, nogil=True, error_model="numpy")
_sums = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_sums
def _squares(row: Array) -> float:
    """Σ x²."""
    total = 0.0
    for j in range(len(row)):
        total += np.float64(row[j]) * np.float64(row[j])
    return float(total)


@_exact
def _length(row: Array, bias: float) -> float:
    """√(‖row‖² + bias), also where the squares underflow or overflow; NaN if the row is not finite.

    A length too small to have all its digits counts as the smallest that has: too long is safe.
    """
    total = _squares(row) + bias
    if 1e-280 < total < 1e280:
        return math.sqrt(total)
    largest = 0.0
    for j in range(len(row)):
        if not math.isfinite(row[j]):
            return np.nan
        largest = max(largest, abs(np.float64(row[j])))
    if largest == 0:
        return 0.0
    exponent = math.frexp(largest)[1]
    half = exponent // 2  # in two steps, since 2^exponent itself may overflow; a bias is lost beside such numbers
    first, second = math.ldexp(1.0, -half), math.ldexp(1.0, half - exponent)
    total = 0.0
    for j in range(len(row)):
        part = np.float64(row[j]) * first * second
        total += part * part
    return max(math.sqrt(total) / first / second, _NORMAL)


@_exact
def columns_fit(starts: Array, columns: Array, values: Array, features: int) -> bool:
    """Whether every row's columns are increasing (twice would break the norm) and below D (it would the memory)."""
    valid = len(starts) > 0 and starts[0] == 0 and starts[-1] == len(values)
    for i in range(len(starts) - 1):
        valid = valid and starts[i] <= starts[i + 1]
    if not valid or len(columns) == 0:
        return valid
    for i in range(len(starts) - 1):
        last = -1
        for s in range(starts[i], starts[i + 1]):
            valid = valid and last < np.int64(columns[s]) < features
            last = np.int64(columns[s])
    return valid


@_sums
def _logits(rows: Rows, picked_B: Array, model: Model, points_KP: Array, z_BKC: Array, lengths_B: Array) -> None:
    """z = θ·x + bias for the picked rows, every point and output; ‖(x, bias)‖, unless there is no room for it.

    Measured each time, while rows are near: they are their owner's, who may have changed them since the last sum.
    """
    starts, columns, values = rows[0], rows[1], rows[2]
    D, bias, C = model[1], model[2], z_BKC.shape[2]
    near = max(8, _NEAR // max(D, 1))
    for first in range(0, len(picked_B), near):
        for r in range(first, min(first + near, len(lengths_B))):
            lengths_B[r] = _length(values[starts[picked_B[r]] : starts[picked_B[r] + 1]], bias)
        for kc in range(len(points_KP) * C):
            k, c = kc // C, kc % C
            weights_D = points_KP[k, c * D : (c + 1) * D]
            offset = points_KP[k, C * D + c] if bias == 1 else 0.0
            for r in range(first, min(first + near, len(picked_B))):
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
    near = max(8, _NEAR // max(D, 1))
    for first in range(0, len(picked_B), near):
        for c in range(C):
            into_D = total_P[c * D : (c + 1) * D]
            for r in range(first, min(first + near, len(picked_B))):
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
def _loss(kind: int, z_BKC: Array, r: int, k: int, target: float) -> float:
    """One example's loss at one point; a class below 0 is one to ignore, as torch does."""
    z, loss = z_BKC[r, k, 0], 0.0
    if kind == BINARY:
        loss = max(z, 0.0) - z * target + math.log1p(math.exp(-abs(z)))
    elif kind == SQUARED:
        loss = (z - target) * (z - target) / 2
    elif target >= 0:
        top = z_BKC[r, k].max()
        loss = top + math.log(np.exp(z_BKC[r, k] - top).sum()) - z_BKC[r, k, int(target)]
    return float(loss)


@_exact
def _residuals(kind: int, targets_n: Array, picked_B: Array, z_BKC: Array) -> float:
    """Turn logits into the loss's derivative by them, in place; returns the sum of the finite losses at point 0."""
    losses = 0.0
    for r in range(len(picked_B)):
        target = targets_n[picked_B[r]]
        loss = _loss(kind, z_BKC, r, 0, target) if kind != BINARY else 0.0
        for k in range(z_BKC.shape[1]):
            z = z_BKC[r, k, 0]
            if kind == BINARY:
                tail = math.exp(-abs(z))
                if k == 0:  # the same as `_loss`, without its second exp
                    loss = max(z, 0.0) - z * target + math.log1p(tail)
                z_BKC[r, k, 0] = (1 / (1 + tail) if z >= 0 else tail / (1 + tail)) - target
            elif kind == SQUARED:
                z_BKC[r, k, 0] = z - target
            elif target < 0:
                z_BKC[r, k] = 0.0
            else:
                shares_C = np.exp(z_BKC[r, k] - z_BKC[r, k].max())
                z_BKC[r, k] = shares_C / shares_C.sum()
                z_BKC[r, k, int(target)] -= 1
        losses += loss if math.isfinite(loss) else 0.0
    return float(losses)


@_exact
def _factor(norm: float, clip: float, weight: float, auto: bool, margin: float) -> float:
    """What a part of this norm is multiplied by, its weight included."""
    if min(clip, weight * clip) < SMALLEST:
        return 0.0
    limit, factor = clip * (1 - margin), 1.0
    if auto:
        factor = limit / (norm + STABILITY)
    elif norm > limit:
        factor = limit / norm
    return weight * factor if min(factor, weight * factor) >= _NORMAL else 0.0


@_exact
def _contributions(lengths_B: Array, r_BKC: Array, query: Asked, u_BC: Array, norms_BM: Array) -> None:
    """u = Σ factor·(combination of residuals) over the parts; their norms before clipping go to `norms_BM`.

    A row of which a residual or ‖(x, 1)‖ is not finite has u = 0 and norms NaN.
    """
    parts, coefficients_MK, margin = query
    K, C = r_BKC.shape[1], r_BKC.shape[2]
    combined_C = np.empty(C)
    for r in range(len(lengths_B)):
        finite = math.isfinite(lengths_B[r])
        for c in range(C):
            u_BC[r, c] = 0.0
            for k in range(K):
                finite = finite and math.isfinite(r_BKC[r, k, c])
        for m in range(len(parts)):
            norms_BM[r, m] = 0.0 if finite else np.nan
            if parts[m, 1] == 0 or not finite:
                continue
            for c in range(C):
                combined_C[c] = 0.0
                for k in range(K):
                    combined_C[c] += coefficients_MK[m, k] * r_BKC[r, k, c]
            norm = (abs(combined_C[0]) if C == 1 else _length(combined_C, 0.0)) * lengths_B[r]
            norms_BM[r, m] = norm
            factor = _factor(norm, parts[m, 0], parts[m, 1], parts[m, 2] == 1, margin)
            for c in range(C):
                product = factor * combined_C[c]
                u_BC[r, c] += product if abs(product) >= _NORMAL else 0.0


@_exact
def _within(picked_B: Array, records: int) -> bool:
    """Whether all indices are those of records."""
    valid = True
    for r in range(len(picked_B)):
        valid = valid and 0 <= picked_B[r] < records
    return valid


@_exact
def clipped_sum(
    rows: Rows, picked_B: Array, model: Model, points_KP: Array, query: Asked, total_P: Array
) -> tuple[bool, float, Floats, Floats]:
    """Add the picked rows' contributions to the total, which is 0 at the start.

    Returns whether the indices are valid (if not, the rest means nothing); the sum of the finite losses at the first
    point; per part, the number of rows longer than its clip, and at the end the number of rows that are not finite and
    were left out; the norms (B, M) before clipping.
    """
    B, K, M, C = len(picked_B), len(points_KP), len(query[0]), len(total_P) // (model[1] + int(model[2]))
    z_BKC, u_BC, norms_BM, counts = np.empty((B, K, C)), np.empty((B, C)), np.empty((B, M)), np.zeros(M + 1)
    lengths_B = np.empty(B)
    if not _within(picked_B, len(rows[3])):
        return False, 0.0, counts, norms_BM
    _logits(rows, picked_B, model, points_KP, z_BKC, lengths_B)
    loss = _residuals(model[0], rows[3], picked_B, z_BKC)
    _contributions(lengths_B, z_BKC, query, u_BC, norms_BM)
    for start in range(0, B, BLOCK):
        piece_P = np.zeros(len(total_P)) if start > 0 else total_P
        _accumulate(rows, picked_B[start : start + BLOCK], model, u_BC[start : start + BLOCK], piece_P)
        if start > 0:
            total_P += piece_P
    for r in range(B):
        for m in range(M):
            counts[m] += norms_BM[r, m] > query[0][m, 0]
        counts[M] += math.isnan(norms_BM[r, 0])
    return True, loss, counts, norms_BM


@_exact
def loss_sums(rows: Rows, people: People, model: Model, points_KP: Array, limit: float, C: int) -> Floats:
    """Σ clamp(Σ loss of a person's rows, 0, limit) at every point; NaN counts as `limit` (0 if that is infinite)."""
    (rows_R, starts), worst = people, limit if limit < math.inf else 0.0
    sums_K = np.zeros(len(points_KP))
    for first in range(0, len(starts) - 1, BLOCK):
        stop = min(first + BLOCK, len(starts) - 1)
        picked = rows_R[starts[first] : starts[stop]]
        z_RKC, piece_K = np.empty((len(picked), len(points_KP), C)), np.zeros(len(points_KP))
        _logits(rows, picked, model, points_KP, z_RKC, np.empty(0))
        for b in range(first, stop):
            for k in range(len(points_KP)):
                loss = 0.0
                for r in range(starts[b] - starts[first], starts[b + 1] - starts[first]):
                    loss += _loss(model[0], z_RKC, r, k, rows[3][picked[r]])
                piece_K[k] += worst if math.isnan(loss) else min(max(loss, 0.0), limit)
        sums_K += piece_K
    return sums_K


@_exact
def _places(rows: Rows, picked: Array, features: int, at_D: Array, column_Q: Array) -> int:
    """Number the different columns of some sparse rows, Q of them: `column_Q` lists them, `at_D` has their numbers.

    `at_D` is −1 for all others, and must be made so again. Dense rows have all columns.
    """
    if len(column_Q) == 0:
        return features
    found = 0
    for i in picked:
        for column in rows[1][rows[0][i] : rows[0][i + 1]]:
            if at_D[column] < 0:
                at_D[column], column_Q[found] = found, column
                found += 1
    return found


@_sums
def _gradient(rows: Rows, i: int, u_C: Array, at_D: Array, into_S: Array, Q: int) -> None:
    """into += u ⊗ (x, 1) for one row, in the places of its columns; the bias's places come last."""
    C, start, stop = len(u_C), rows[0][i], rows[0][i + 1]
    row = rows[2][start:stop]
    for c in range(C):
        u, into_Q = u_C[c], into_S[c * Q : (c + 1) * Q]
        if len(at_D) == 0:
            for j in range(len(row)):
                into_Q[j] += u * np.float64(row[j])
        else:
            where = rows[1][start:stop]
            for s in range(len(row)):
                into_Q[at_D[where[s]]] += u * np.float64(row[s])
        into_S[C * Q + c] += u


@_sums
def _add_person(g_S: Array, factor: float, column_Q: Array, Q: int, model: Model, total_P: Array) -> None:
    """total += factor·g, from the places of a person's columns."""
    D, C = model[1], len(total_P) // (model[1] + int(model[2]))
    for c in range(C):
        into_D, from_Q = total_P[c * D : (c + 1) * D], g_S[c * Q : (c + 1) * Q]
        if len(column_Q) == 0:
            for j in range(Q):
                into_D[j] += factor * from_Q[j]
        else:
            for q in range(Q):
                into_D[column_Q[q]] += factor * from_Q[q]
        if model[2] == 1:
            total_P[C * D + c] += factor * g_S[C * Q + c]


@_exact
def _person(
    rows: Rows, picked: Array, lengths_r: Array, r_rKC: Array, query: Asked, at_D: Array, Q: int, g_MS: Array
) -> bool:
    """A person's parts g = Σ_rows (combination of residuals) ⊗ (x, 1); False if a row is not finite."""
    K, C = r_rKC.shape[1:]
    u_C = np.empty(C)
    for r in range(len(picked)):
        finite = math.isfinite(lengths_r[r])
        for m in range(len(g_MS)):
            for c in range(C):
                u_C[c] = 0.0
                for k in range(K):
                    u_C[c] += query[1][m, k] * r_rKC[r, k, c]
                    finite = finite and math.isfinite(r_rKC[r, k, c])
            if not finite:
                return False
            if query[0][m, 1] > 0:
                _gradient(rows, picked[r], u_C, at_D, g_MS[m], Q)
    return True


@_exact
def people_sum(
    rows: Rows, people: People, model: Model, points_KP: Array, query: Asked, total_P: Array
) -> tuple[bool, float, Floats, Floats]:
    """As `clipped_sum`, where an example is a person: its rows' gradients are added up before they are clipped."""
    (rows_R, starts), (D, bias), sparse = people, model[1:], len(rows[1]) > 0
    B, K, M, C = len(starts) - 1, len(points_KP), len(query[0]), len(total_P) // (D + int(bias))
    z_RKC, norms_BM, counts = np.empty((len(rows_R), K, C)), np.empty((B, M)), np.zeros(M + 1)
    lengths_R = np.empty(len(rows_R))
    if not _within(rows_R, len(rows[3])):
        return False, 0.0, counts, norms_BM
    _logits(rows, rows_R, model, points_KP, z_RKC, lengths_R)
    loss = _residuals(model[0], rows[3], rows_R, z_RKC)
    at_D, column_Q = np.full(D if sparse else 0, -1), np.empty(D if sparse else 0, dtype=np.int64)
    g_MS, piece_P = np.empty((M, C * D + C)), np.zeros(len(total_P))
    for b in range(B):
        own = slice(starts[b], starts[b + 1])
        picked, r_rKC = rows_R[own], z_RKC[own]
        Q = _places(rows, picked, D, at_D, column_Q)
        g_MS[:, : C * Q + C] = 0.0
        finite = _person(rows, picked, lengths_R[own], r_rKC, query, at_D, Q, g_MS)
        for m in range(M):
            norms_BM[b, m] = _length(g_MS[m, : C * Q + C * int(bias)], 0.0)
            finite = finite and math.isfinite(norms_BM[b, m])
        for m in range(M):
            part, norms_BM[b, m] = query[0][m], norms_BM[b, m] if finite else np.nan
            counts[m] += norms_BM[b, m] > part[0]
            if finite and part[1] > 0:
                factor = _factor(norms_BM[b, m], part[0], part[1], part[2] == 1, query[2])
                _add_person(g_MS[m], factor, column_Q, Q, model, piece_P)
        counts[M] += not finite
        if sparse:
            at_D[column_Q[:Q]] = -1
        if b % BLOCK == BLOCK - 1 or b == B - 1:
            total_P += piece_P
            piece_P[:] = 0.0
    return True, loss, counts, norms_BM
