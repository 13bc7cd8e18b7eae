"""Records that torch's own datasets give several times: each time counts, and the noise hides one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Subset

from dpsrm.core.errors import need

Array = npt.NDArray[np.int64]


def need_each_once(dataset: Any) -> None:
    """Refuse torch's `Subset` and `ConcatDataset` where a record of what they are made of is there twice.

    Edge cases: two datasets that are not the same object are taken to hold different records.

    >>> need_each_once(Subset(range(4), [0, 2, 0]))
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: a record must be in a dataset once: one that is there twice counts twice, and the \
noise hides one; got dataset='Subset', record=0; give each index once; to weigh some records more, weigh their losses
    """
    owner_n, place_n = _origins(dataset, {})
    _, first = np.unique(owner_n * (place_n.max() + 1) + place_n, return_index=True)
    again = np.setdiff1d(np.arange(len(owner_n)), first, assume_unique=True)
    need(
        len(again) == 0,
        "a record must be in a dataset once: one that is there twice counts twice, and the noise hides one",
        dataset=type(dataset).__name__,
        record=int(place_n[again[0]]) if len(again) else None,
        remedy="give each index once; to weigh some records more, weigh their losses",
    )


def _origins(dataset: Any, known: dict[int, int]) -> tuple[Array, Array]:
    """Of which dataset each record is in the end, numbered as in `known`, and where in it."""
    if type(dataset) is Subset:
        owner_n, place_n = _origins(dataset.dataset, known)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return owner_n[chosen], place_n[chosen]
    if type(dataset) is ConcatDataset:
        owners, places = zip(*(_origins(each, known) for each in dataset.datasets), strict=True)
        return np.concatenate(owners), np.concatenate(places)
    return np.full(len(dataset), known.setdefault(id(dataset), len(known))), np.arange(len(dataset))
