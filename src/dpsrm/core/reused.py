"""Memory for vectors as long as a large model, used again by the next step instead of being asked for anew.

The system hands out memory page by page and writes zeros into each: for ten million numbers that takes longer than what
is computed of them. A buffer comes back when the last array or tensor that looks at it is gone.
"""

from __future__ import annotations

import weakref
from contextlib import suppress

import numpy as np
import numpy.typing as npt

LONG = 2**22
"""Bytes: anything shorter the usual allocators have at hand."""

_KEPT = 3 * 2**27
"""Bytes that are kept for later at most; models whose vectors are longer than that ask the system."""

_ALIGNED = 64
"""Where torch begins its own vectors; products may depend on it in their last bits, so it must not vary."""

Bytes = npt.NDArray[np.uint8]
_free: list[Bytes] = []


class _Loan:
    """What every array over a lent buffer holds on to, however it was made of another."""

    def __init__(self, whole: Bytes) -> None:
        """Lend all of it."""
        self.__array_interface__ = whole.__array_interface__


def buffer(count: int) -> Bytes:
    """`count` bytes of no particular value, lent to nobody else as long as anything looks at them.

    >>> buffer(100).shape
    (100,)
    """
    whole = _taken(count)
    if whole is None:
        padded: Bytes = np.empty(count + _ALIGNED, dtype=np.uint8)
        begin = -padded.ctypes.data % _ALIGNED
        whole = padded[begin : begin + count]
    if count < LONG:
        return whole
    loan = _Loan(whole)
    weakref.finalize(loan, _back, whole).atexit = False
    return np.asarray(loan)


def _taken(count: int) -> Bytes | None:
    """A free buffer of this length. Each `pop` gives a buffer to one caller only, whatever other threads do."""
    others: list[Bytes] = []
    found: Bytes | None = None
    with suppress(IndexError):
        while found is None:
            whole = _free.pop()
            if len(whole) == count:
                found = whole
            else:
                others.append(whole)
    _free.extend(reversed(others))
    return found


def _back(whole: Bytes) -> None:
    """Keep a buffer that nobody looks at any more, and the newest others up to `_KEPT`."""
    _free.append(whole)
    with suppress(IndexError):
        while sum(map(len, tuple(_free))) > _KEPT:
            _free.pop(0)
