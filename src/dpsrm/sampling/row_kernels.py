"""Compiled picking of rows; all of it in one file, because Numba's cache does not notice changes in another.

Shapes: n rows, N persons, B drawn persons, R rows picked.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@_compiled
def _mixed(state: Any) -> Any:
    """One number of SplitMix64 (Steele, Lea & Flood 2014): every bit of it depends on every bit of the state."""
    z = (state ^ (state >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@_compiled
def _subset(rows: int, table: Array, state: Any, out: Array) -> None:
    """A uniform subset of len(out) of range(rows), fewer than 2³², by Floyd's method with a hash table: O(len(out)).

    Floyd: for t = rows − k … rows − 1 take a random number up to t, or t itself if that was taken before.
    """
    table[:] = -1
    last = len(table) - 1
    for j in range(len(out)):
        t = rows - len(out) + j
        state += _STEP
        found = np.int64(((_mixed(state) >> _32) * np.uint64(t + 1)) >> _32)
        for attempt in range(2):
            at = np.int64(_mixed(np.uint64(found)) & np.uint64(last))
            while table[at] >= 0 and table[at] != found:
                at = (at + 1) & last
            if table[at] < 0 or attempt == 1:
                break
            found = np.int64(t)
        table[at] = found
        out[j] = found


@_compiled
def pick(order: Array, starts: Array, keys: Array, persons_B: Array, most: int, seed: Any) -> tuple[Array, Array]:
    """`pick_rows`; persons are taken to be inside the grouping."""
    begins = np.zeros(len(persons_B) + 1, dtype=np.int64)
    for b in range(len(persons_B)):
        p = persons_B[b]
        begins[b + 1] = begins[b] + min(most, starts[p + 1] - starts[p])
    rows = np.empty(begins[-1], dtype=np.int64)
    size = 2
    while size < 2 * most:
        size *= 2
    table = np.empty(size, dtype=np.int64)
    for b in range(len(persons_B)):
        p = persons_B[b]
        first, count, out = starts[p], starts[p + 1] - starts[p], rows[begins[b] : begins[b + 1]]
        if count <= most:
            out[:] = order[first : first + count]
            continue
        _subset(count, table, _mixed(seed ^ _mixed(keys[p])), out)
        for j in range(most):
            out[j] = order[first + out[j]]
    return rows, begins
