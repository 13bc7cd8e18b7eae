"""Compiled ChaCha20 and ziggurat; all of it in one file, because Numba's cache does not notice changes in another.

Shapes: W = 16 words of a ChaCha20 block, L blocks made together.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
LANES = 64
"""ChaCha20 blocks made together: the loops over them become vector instructions."""
NUMBERS = 8 * LANES
"""64-bit numbers of so many blocks."""

_CONSTANT_W = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
_A, _B = np.array([0, 1, 2, 3] * 2), np.array([4, 5, 6, 7, 5, 6, 7, 4])
_C, _D = np.array([8, 9, 10, 11, 10, 11, 8, 9]), np.array([12, 13, 14, 15, 15, 12, 13, 14])
"""Words of the quarter rounds: four columns, then four diagonals."""
_word, _wide = np.uint32, np.uint64
_7, _8, _12, _16, _20, _24, _25 = (np.uint32(bits) for bits in (7, 8, 12, 16, 20, 24, 25))
_LOW, _32, _4, _60 = np.uint64(2**32 - 1), np.uint64(32), np.uint64(4), np.uint64(60)
_ONE, _255, _11, _MANTISSA = np.uint64(1), np.uint64(255), np.uint64(11), np.uint64(2**52 - 1)
TAIL = 3.6541528853610088
"""Where the tail of the ziggurat of 256 layers begins (Doornik 2005)."""


@_compiled
def _mix(words_WL: Array) -> None:
    """ChaCha20's ten double rounds (Bernstein 2008), on L blocks at once."""
    for _ in range(10):
        for k in range(8):
            row_a, row_b, row_c, row_d = words_WL[_A[k]], words_WL[_B[k]], words_WL[_C[k]], words_WL[_D[k]]
            for at in range(LANES):
                a, b, c, d = row_a[at], row_b[at], row_c[at], row_d[at]
                a = _word(a + b)
                d = _word(d ^ a)
                d = _word((d << _16) | (d >> _16))
                c = _word(c + d)
                b = _word(b ^ c)
                b = _word((b << _12) | (b >> _20))
                a = _word(a + b)
                d = _word(d ^ a)
                d = _word((d << _8) | (d >> _24))
                c = _word(c + d)
                b = _word(b ^ c)
                row_b[at] = _word((b << _7) | (b >> _25))
                row_a[at], row_c[at], row_d[at] = a, c, d


@_compiled
def _bits(key: Array, block: Any, nonce: Any, work: Array, out: Array) -> None:
    """The 64-bit numbers of L blocks from number `block` on; `work` is (2, W, L).

    The position is one number of 128 bits, nonce and words together, in words; a block has 16.
    """
    start_WL, words_WL = work[0], work[1]
    for w in range(4):
        start_WL[w, :] = _CONSTANT_W[w]
    for w in range(8):
        start_WL[4 + w, :] = key[w]
    for at in range(LANES):
        counter = _wide(block + _wide(at)) | (nonce << _60)
        start_WL[12, at], start_WL[13, at] = _word(counter & _LOW), _word(counter >> _32)
    start_WL[14, :], start_WL[15, :] = _word((nonce >> _4) & _LOW), _word(nonce >> _wide(36))
    words_WL[:] = start_WL
    _mix(words_WL)
    for pair in range(8):
        low, high, low0, high0 = words_WL[2 * pair], words_WL[2 * pair + 1], start_WL[2 * pair], start_WL[2 * pair + 1]
        for at in range(LANES):
            upper = _wide(_word(high[at] + high0[at])) << _32
            out[8 * at + pair] = upper | _wide(_word(low[at] + low0[at]))


@_compiled
def _unit(bits: Any) -> float:
    """A number in [0, 1) of 53 bits."""
    return np.float64(bits >> _11) * 2.0**-53


@_compiled
def normals(key: Array, position: Array, tables: tuple[Array, Array, Array], out: Array) -> int:
    """Fill `out` with standard normals by a ziggurat (Marsaglia & Tsang 2000); how many 64-bit numbers were used.

    Args:
        position: [words, nonce], as a generator has them, at the beginning of a block.
        tables: `ziggurat_tables`.
    """
    inside, widths, heights = tables
    work, bits = np.empty((2, 16, LANES), dtype=np.uint32), np.empty(NUMBERS + 64, dtype=np.uint64)
    block, nonce, at, end, used = _wide(position[0] >> _4), _wide(position[1]), 0, 0, 0
    for i in range(len(out)):
        tail, x = False, 0.0
        while True:
            if end - at < 4:  # the most that one turn of this loop takes
                left = end - at
                bits[:left] = bits[at:end]
                _bits(key, block, nonce, work, bits[left : left + NUMBERS])
                block = _wide(block + _wide(LANES))
                used, at, end = used + at, 0, left + NUMBERS
            if tail:
                step = -np.log1p(-_unit(bits[at])) / TAIL
                rest = -np.log1p(-_unit(bits[at + 1]))
                at += 2
                if rest + rest > step * step:
                    x = -(TAIL + step) if x < 0 else TAIL + step
                    break
                continue
            drawn = bits[at]
            at += 1
            layer, drawn = np.int64(drawn & _255), drawn >> _wide(8)
            size = (drawn >> _ONE) & _MANTISSA
            x = np.float64(size) * widths[layer]
            if drawn & _ONE:
                x = -x
            if size < inside[layer]:
                break
            if layer == 0:
                tail = True
                x = -1.0 if (size >> _wide(8)) & _ONE else 1.0
                continue
            height = (heights[layer - 1] - heights[layer]) * _unit(bits[at]) + heights[layer]
            at += 1
            if height < np.exp(-0.5 * x * x):
                break
        out[i] = x
    return used + at
