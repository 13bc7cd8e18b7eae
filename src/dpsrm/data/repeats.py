"""Records that lists and torch's own datasets give several times: each time counts, and the noise hides one."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from dpsrm.core.errors import need
from dpsrm.data.alike import known_as, rows_in_memory
from dpsrm.data.image_folder import ImageFolder
from dpsrm.data.units import Units

Array = npt.NDArray[np.int64]


def need_each_once(dataset: Any, units: Units | None = None) -> None:
    """Refuse torch's `Subset`, `ConcatDataset` and `StackDataset`, lists and folders, where a record is there twice.

    Args:
        units: whose each record is, if units are protected: one unit may have a record twice, but not two of them.

    Edge cases: two datasets are the same records if they are the same object, or rows of the same memory, or alike in
    all but their transforms (`known_as`). Two elements of a list that are not the same object are different.

    >>> need_each_once(Subset(range(4), [0, 2, 0]))
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: a record must be in a dataset once: one that is there twice counts twice, and the \
noise hides one; got dataset='Subset', record=0; give each index once; to weigh some records more, weigh their losses
    """
    owner_n, place_n = _origins(dataset, {})
    _, first, which = np.unique(owner_n * (place_n.max() + 1) + place_n, return_index=True, return_inverse=True)
    whose_n = np.arange(len(owner_n)) if units is None else units.whose
    again = np.flatnonzero(whose_n[first][which] != whose_n)
    need(
        len(again) == 0,
        "a record must be in a dataset once: one that is there twice counts twice, and the noise hides one"
        if units is None
        else "a record must be one unit's: one that two have counts twice, and the noise hides one",
        dataset=type(dataset).__name__,
        record=int(place_n[again[0]]) if len(again) else None,
        remedy="give each index once; to weigh some records more, weigh their losses",
    )


def _origins(dataset: Any, known: dict[Hashable, int], *, several: bool = False) -> tuple[Array, Array]:
    """Of which dataset each record is in the end, numbered as in `known`, and where in it; of `several`, if so."""
    reads = getattr(type(dataset), "__getitem__", None)  # a class that only inherits it gives the same records
    if reads is Subset.__getitem__:
        owner_n, place_n = _origins(dataset.dataset, known, several=several)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return owner_n[chosen], place_n[chosen]
    if reads is ConcatDataset.__getitem__:
        owners, places = zip(*(_origins(each, known, several=True) for each in dataset.datasets), strict=True)
        return np.concatenate(owners), np.concatenate(places)
    name, place_n = (known_as(dataset) if several else id(dataset)), np.arange(len(dataset))
    if reads is TensorDataset.__getitem__:
        name, place_n = rows_in_memory(dataset.tensors)
    elif isinstance(dataset, ImageFolder):  # a link to a file is that file
        place_n = _first_of_each(
            (facts.st_dev, facts.st_ino) for facts in map(os.stat, (path for path, _ in dataset.files))
        )
    elif reads is StackDataset.__getitem__:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        columns = np.stack([column for part in parts for column in _origins(part, known, several=several)])
        place_n = _first_of_each(map(tuple, columns.T.tolist()))
    elif reads in (list.__getitem__, tuple.__getitem__):  # the very same object: texts and numbers are shared by Python
        place_n = _first_of_each(at if isinstance(each, _SHARED) else (id(each),) for at, each in enumerate(dataset))
    return np.full(len(dataset), known.setdefault(name, len(known))), place_n


_SHARED = (str, bytes, int, float, type(None))


def _first_of_each(names: Iterable[Hashable]) -> Array:
    """Where each name is first.

    >>> _first_of_each("abca").tolist()
    [0, 1, 2, 0]
    """
    first: dict[Hashable, int] = {}
    return np.array([first.setdefault(name, at) for at, name in enumerate(names)], dtype=np.int64)
