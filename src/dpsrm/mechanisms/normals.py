"""Standard normals of a ChaCha20 stream: NumPy's own numbers but for the last bits, several times as fast."""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from randomgen import ChaCha

MANY = 2**14
"""Below so many NumPy is fast enough, and nothing needs to be compiled."""
Array = npt.NDArray[Any]


def fill_normals(out: npt.NDArray[np.float64], stream: np.random.Generator) -> None:
    """Fill `out` with independent standard normals, from the bits of which NumPy's `stream.standard_normal` makes them.

    The stream then stands where NumPy would have left it. ChaCha20 makes many blocks together, by vector instructions,
    and the ziggurat is compiled with it. Its layers end where they do in NumPy to 14 digits (ours are computed in
    extended precision, NumPy's table is some 40 units of the last place off), so a number is NumPy's to 14 digits; once
    it is rounded to the grid, as every large release is, it is the same.

    Edge cases: NumPy itself fills a short or scattered `out`, and one from a generator that is not ChaCha20, or that
    stands in the middle of a block.

    >>> numbers = np.empty(3)
    >>> fill_normals(numbers, np.random.default_rng(0))
    >>> numbers.tolist() == np.random.default_rng(0).standard_normal(3).tolist()
    True
    """
    bits: Any = stream.bit_generator
    state = bits.state["state"] if isinstance(bits, ChaCha) else {}
    ours = len(out) >= MANY and state.get("rounds") == 20 and state["ctr"][0] % 16 == 0 and out.flags.c_contiguous
    if not ours:
        stream.standard_normal(out=out)
        return
    position = state["ctr"].copy()
    used = _kernels().normals(state["keysetup"], position, ziggurat_tables(), out)
    _move(bits, int(position[0]) + 2 * used, int(position[1]))


def _move(bits: Any, words: int, nonce: int) -> None:
    """Let a generator stand at so many words: its block is made by drawing, so go to the beginning and draw on."""
    state = bits.state
    counter = np.array([words // 16 * 16, nonce], dtype=np.uint64)
    bits.state = {**state, "state": {**state["state"], "ctr": counter}}
    if words % 16:
        bits.random_raw(words % 16 // 2)


@lru_cache(maxsize=1)
def _kernels() -> ModuleType:
    """The compiled code, imported when first needed."""
    from dpsrm.mechanisms import normal_kernels

    return normal_kernels


@lru_cache(maxsize=1)
def ziggurat_tables() -> tuple[Array, Array, Array]:
    """Of 256 layers of one area under exp(−x²/2): how much of each lies inside (of 2⁵²), its width, its height.

    Layers end at x₁ < … < x₂₅₅ = r with (x_i)·(f(x_{i−1}) − f(x_i)) = v for all of them; layer 0 is the base with the
    tail. Computed in extended precision, so that the last bits are right.

    Source: Marsaglia & Tsang 2000, "The ziggurat method for generating random variables".
    """
    from dpsrm.mechanisms.normal_kernels import TAIL

    r = np.longdouble(TAIL)
    ends = [r]
    area = r * np.exp(-r * r / 2) + np.longdouble(_tail_area())
    for _ in range(254):
        x = ends[-1]
        ends.append(np.sqrt(-2 * np.log(area / x + np.exp(-x * x / 2))))
    x_255 = np.array(ends[::-1], dtype=np.longdouble)
    base = area / np.exp(-r * r / 2)
    scale = np.longdouble(2.0) ** 52
    inside = np.concatenate([[r / base, 0], x_255[:-1] / x_255[1:]]) * scale
    widths = np.concatenate([[base], x_255]) / scale
    heights = np.concatenate([[1], np.exp(-x_255 * x_255 / 2)])
    return inside.astype(np.uint64), widths.astype(np.float64), heights.astype(np.float64)


def _tail_area() -> float:
    """∫ exp(−x²/2) from the ziggurat's tail on."""
    from dpsrm.mechanisms.normal_kernels import TAIL

    return math.sqrt(math.pi / 2) * math.erfc(TAIL / math.sqrt(2))
