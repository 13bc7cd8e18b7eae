"""Compiled passes over materialised rows at one point or two, x and y, all in float64: norms, and weighted sums.

Shapes: B examples, P parameters. Rows lie in one array each, row i from i·step on, so that they need not be copied
together. A difference is always taken first, x − y, and only then multiplied: `fastmath` may fuse a product with an
addition, but not reorder them, or a small difference of large numbers would lose its digits.
All of it stays in one file: Numba's cache on disk does not notice a change in another file's compiled function.
It is `np.float64(x)` and not `float(x)`, which Numba leaves in single precision.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LANES = 16
"""Sums kept side by side: as many as a processor adds at once, several times over."""
_NEAR = 1024
"""Coordinates summed up before the next ones: their sums stay in the cache."""

_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
_in_any_order = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})
"""For sums of squares, in which nothing cancels: their order does not matter, and the fastest is chosen."""


@_compiled
def squares(x: Array, x_step: int, y: Array, y_step: int, size: int, out_3B: Array) -> None:
    """‖x‖², ‖x − y‖² and ‖y‖² of every example, of `size` coordinates."""
    lanes = np.empty((3, _LANES))
    whole = size // _LANES * _LANES
    for i in range(out_3B.shape[1]):
        lanes[:] = 0.0
        of_x, of_difference, of_y = lanes[0], lanes[1], lanes[2]
        row, other = x[i * x_step : i * x_step + size], y[i * y_step : i * y_step + size]
        for start in range(0, whole, _LANES):
            some, others = row[start : start + _LANES], other[start : start + _LANES]
            for j in range(_LANES):
                a, b = np.float64(some[j]), np.float64(others[j])
                of_x[j] += a * a
                of_difference[j] += (a - b) * (a - b)
                of_y[j] += b * b
        for j in range(whole, size):
            a, b = np.float64(row[j]), np.float64(other[j])
            of_x[0] += a * a
            of_difference[0] += (a - b) * (a - b)
            of_y[0] += b * b
        for k in range(3):
            out_3B[k, i] = lanes[k].sum()


@_in_any_order
def squares_alone(x: Array, x_step: int, size: int, out_B: Array) -> None:
    """‖x‖² of every example, of `size` coordinates."""
    for i in range(len(out_B)):
        row, square = x[i * x_step : i * x_step + size], 0.0
        for j in range(size):
            a = np.float64(row[j])
            square += a * a
        out_B[i] = square


@_compiled
def square_of(x: Array, x_step: int, y: Array, y_step: int, size: int, mixed: Array, out_B: Array) -> None:
    """‖c₀·x + c₁·(x − y) + c₂·y‖² of every example, c = `mixed`."""
    lanes = np.empty(_LANES)
    whole = size // _LANES * _LANES
    for i in range(len(out_B)):
        lanes[:] = 0.0
        row, other = x[i * x_step : i * x_step + size], y[i * y_step : i * y_step + size]
        for start in range(0, whole, _LANES):
            some, others = row[start : start + _LANES], other[start : start + _LANES]
            for j in range(_LANES):
                a, b = np.float64(some[j]), np.float64(others[j])
                v = mixed[0] * a + mixed[1] * (a - b) + mixed[2] * b
                lanes[j] += v * v
        for j in range(whole, size):
            a, b = np.float64(row[j]), np.float64(other[j])
            v = mixed[0] * a + mixed[1] * (a - b) + mixed[2] * b
            lanes[0] += v * v
        out_B[i] = lanes.sum()


@_compiled
def weighted_sum(x: Array, x_step: int, y: Array, y_step: int, weights_3B: Array, out_P: Array) -> None:
    """Σ_i w₀·x + w₁·(x − y) + w₂·y over all examples, w = column i of `weights_3B`."""
    out_P[:] = 0.0
    size = len(out_P)
    for start in range(0, size, _NEAR):
        end = min(start + _NEAR, size)
        sums = out_P[start:end]
        for i in range(weights_3B.shape[1]):
            row, other = x[i * x_step + start : i * x_step + end], y[i * y_step + start : i * y_step + end]
            of_x, of_difference, of_y = weights_3B[0, i], weights_3B[1, i], weights_3B[2, i]
            for j in range(end - start):
                a, b = np.float64(row[j]), np.float64(other[j])
                sums[j] += of_x * a + of_difference * (a - b) + of_y * b


@_compiled
def weighted_sum_alone(x: Array, x_step: int, weights_B: Array, out_P: Array) -> None:
    """Σ_i w·x over all examples, w = element i of `weights_B`; four examples at a time, so that sums are read less."""
    out_P[:] = 0.0
    size, examples = len(out_P), len(weights_B)
    fours = examples // 4 * 4
    for start in range(0, size, _NEAR):
        end = min(start + _NEAR, size)
        sums = out_P[start:end]
        for i in range(0, fours, 4):
            at = i * x_step + start
            w, w1, w2, w3 = weights_B[i], weights_B[i + 1], weights_B[i + 2], weights_B[i + 3]
            row, row1 = x[at : at + end - start], x[at + x_step : at + x_step + end - start]
            row2, row3 = x[at + 2 * x_step : at + 2 * x_step + end - start], x[at + 3 * x_step :]
            for j in range(end - start):
                few = w * np.float64(row[j]) + w1 * np.float64(row1[j])
                sums[j] += few + (w2 * np.float64(row2[j]) + w3 * np.float64(row3[j]))
        for i in range(fours, examples):
            row, weight = x[i * x_step + start : i * x_step + end], weights_B[i]
            for j in range(end - start):
                sums[j] += weight * np.float64(row[j])
