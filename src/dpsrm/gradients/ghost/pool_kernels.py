"""Compiled max pooling by windows at distance 1, of images whose channels lie last in memory: equal to torch's.

Shapes: B images of H rows, each W·C numbers long; of every row of windows L = (W − k + 1)·C numbers come out.
torch's kernel also writes the place of every window's largest element, as an integer of 8 bytes, and goes from window
to window. Here whole rows are compared at once, and the places are found again on the way back.
All of it stays in one file: Numba's cache on disk does not notice a change in another file's compiled function.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_compiled = numba.njit(cache=True, nogil=True, error_model="numpy")


@_compiled
def largest(x: Array, kernel: tuple[int, int], down: int, channels: int, out: Array) -> None:
    """The largest element of every window, `down` rows from one to the next; the last one that is not a number."""
    length = out.shape[2]
    for b in range(len(x)):
        for i in range(out.shape[1]):
            found = out[b, i]
            first = x[b, i * down]
            for c in range(length):
                found[c] = first[c]
            for k in range(1, kernel[0] * kernel[1]):
                at = k % kernel[1] * channels
                seen = x[b, i * down + k // kernel[1]][at : at + length]
                for c in range(length):
                    value = seen[c]
                    found[c] = value if ((value > found[c]) | (value != value)) else found[c]


@_compiled
def to_largest(g: Array, x: Array, out: Array, kernel: tuple[int, int], down: int, channels: int, back: Array) -> None:
    """The way back: the gradient of every window goes to its largest element, the first of several.

    An element in several windows gets their gradients in the windows' order, as torch adds them.
    """
    length = out.shape[2]
    places = np.empty(length, dtype=np.int32)
    nothing = back.dtype.type(0)
    for b in range(len(x)):
        back[b] = nothing
        for i in range(out.shape[1]):
            found, gradient = out[b, i], g[b, i]
            for c in range(length):
                places[c] = np.int32(-1)
            for k in range(kernel[0] * kernel[1]):
                at = k % kernel[1] * channels
                seen = x[b, i * down + k // kernel[1]][at : at + length]
                for c in range(length):
                    value = seen[c]
                    here = ((value == found[c]) & (places[c] < 0)) | (value != value)
                    places[c] = np.int32(k) if here else places[c]
            for k in range(kernel[0] * kernel[1] - 1, -1, -1):
                at = k % kernel[1] * channels
                into = back[b, i * down + k // kernel[1]][at : at + length]
                for c in range(length):
                    into[c] += gradient[c] if places[c] == k else nothing
