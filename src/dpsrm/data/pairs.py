"""Pairs of a table's columns, hashed: a linear model can then treat two columns together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

Bucket = Callable[[str, str, int], tuple[int, int]]
"""A fixed hash: of a name and a word, and how many buckets there are, the bucket and a sign."""
PAIRS = 1024
"""Buckets of pairs that `features = "pairs"` stands for."""
Column = tuple[str, npt.NDArray[np.int64], Sequence[str | None]]
"""Its name; for every record the number of its word; the words, None for one that takes part in no pair."""


def pair_slots(columns: Sequence[Column], buckets: int, bucket: Bucket) -> npt.NDArray[np.float32]:
    """(n, buckets): of every two columns, ± a weight in the bucket that a fixed hash of both names and words points to.

    All pairs of a record together weigh as much as its columns: each has the weight √(columns ÷ pairs).

    >>> two = [("age", np.array([0, 1]), ("40", None)), ("job", np.array([0, 0]), ("nurse",))]
    >>> np.abs(pair_slots(two, 8, lambda name, word, buckets: (len(word) % buckets, 1))).sum(1).round(1).tolist()
    [1.399999976158142, 0.0]
    """
    pairs = list(combinations(columns, 2))
    out = np.zeros((len(columns[0][1]) if columns else 0, buckets), dtype=np.float32)
    weight = np.float32(np.sqrt(len(columns) / max(len(pairs), 1)))
    rows = np.arange(len(out))
    for (left, a_n, lefts), (right, b_n, rights) in pairs:
        both, codes_n = np.unique(a_n * len(rights) + b_n, return_inverse=True)
        words = [(lefts[code // len(rights)], rights[code % len(rights)]) for code in both]
        places = [
            (0, 0) if None in pair else bucket("pair", json.dumps([left, right, *pair]), buckets) for pair in words
        ]
        where, signs = np.array([p[0] for p in places]), np.array([p[1] for p in places], dtype=np.float32)
        out[rows, where[codes_n]] += weight * signs[codes_n]
    return out
