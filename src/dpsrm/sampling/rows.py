"""Which rows of a drawn person count: all of them, or a fresh random subset of k.

Shapes: n rows, N persons, B drawn persons, R rows picked.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Grouping = tuple[Array, Array, Array]
"""Rows, person after person (n,); where each person's begin in them (N + 1,); a number of each person's own (N,)."""


@lru_cache(maxsize=1)
def _kernels() -> ModuleType:
    """The compiled code, imported when first needed: Numba takes a third of a second."""
    from dpsrm.sampling import row_kernels

    return row_kernels


def pick_rows(grouping: Grouping, persons_B: Array, *, most: int, seed: int) -> tuple[Array, Array]:
    """At most `most` rows of each person, and where each person's begin, (R,) and (B + 1,); O(most) per person.

    Args:
        grouping: see `Grouping`.
        persons_B: which persons, each below N.
        seed: of this release: another one picks other rows.

    Guarantee: which rows of a person are picked is a function of the seed, the person's own number and how many rows
    the person has: nothing about anybody else enters. A person with no more than `most` rows gets all of them, in
    their order; of more rows every subset of `most` is as likely as any other, over the seeds, to within 2⁻³² (no
    guarantee rests on that).

    >>> grouping = np.array([0, 2, 1]), np.array([0, 2, 3]), np.array([5, 6], dtype=np.uint64)
    >>> [part.tolist() for part in pick_rows(grouping, np.array([1, 0]), most=2, seed=1)]
    [[1, 0, 2], [0, 1, 3]]
    """
    order, starts, keys = grouping
    found: tuple[Array, Array] = _kernels().pick(order, starts, keys, persons_B, most, np.uint64(seed))
    return found
