"""Compiled NH, a universal hash; in a file of its own, because Numba's cache does not notice changes in another."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

_LOW, _32 = np.uint64(2**32 - 1), np.uint64(32)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def products(words: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> tuple[Any, Any]:
    """NH of `words` under two keys, each (a₁ + k₁)(b₁ + l₁) + …, of the halves a, b of words and k, l of the key.

    Halves are added modulo 2³², products modulo 2⁶⁴. Different words of one number have one NH under a random key with
    probability 2⁻³² at most.

    Source: Black, Halevi, Krawczyk, Krovetz, Rogaway 1999, "UMAC: fast and secure message authentication", Theorem 1.
    """
    first, second = np.uint64(0), np.uint64(0)
    for i in range(len(words)):
        low, high = words[i] & _LOW, words[i] >> _32
        k, m = keys[0, i], keys[1, i]
        first += ((low + k) & _LOW) * ((high + (k >> _32)) & _LOW)
        second += ((low + m) & _LOW) * ((high + (m >> _32)) & _LOW)
    return first, second
