"""NumPy .npz files: `X` (n, ...) numbers and `y` (n,) labels."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import InputError, need
from dpsrm.data.encoding import unit_norm
from dpsrm.data.mapped import open_npy
from dpsrm.data.tables import Cell


@dataclass(frozen=True, eq=False)
class Arrays:
    """Features as numbers beside labels as cells."""

    x: npt.NDArray[np.float64]
    labels: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class ArrayEncoder:
    """Numbers taken as they are; the shape of one record is public.

    >>> ArrayEncoder(shape=(2,)).encode(Arrays(np.ones((1, 2)), (1.0,))).tolist()
    [[1.0, 1.0]]
    """

    shape: tuple[int, ...]
    normalise: bool = False

    @property
    def features(self) -> int:
        return math.prod(self.shape)

    def encode(self, source: Arrays) -> npt.NDArray[np.float32]:
        """Records as float32, each checked to be finite."""
        need(
            source.x.shape[1:] == self.shape,
            "records must have the shape the model was made for",
            shape=source.x.shape[1:],
            wanted=self.shape,
        )
        with np.errstate(over="ignore"):
            x = source.x.astype(np.float32)
        bad = np.argwhere(~np.isfinite(x))
        if bad.size:
            row, *column = bad[0].tolist()
            need(
                False,
                "features must be finite in float32",
                row=row,
                column=tuple(column),
                value=float(source.x[tuple(bad[0])]),
                remedy="remove the record or replace the value by a fixed one",
            )
        return unit_norm(x) if self.normalise else x

    def describe(self) -> dict[str, object]:
        """What preprocessing knew, and why it is public."""
        return {
            "format": "npz",
            "shape": list(self.shape),
            "features": self.features,
            "normalise": self.normalise,
            "public": "only the shape of one record was used",
        }


def read_npz(path: Path | str, *, labelled: bool = True) -> Arrays:
    """Read arrays `X` and `y`; nothing in the file is executed. Not `labelled`, y is not looked at and labels are None.

    Edge cases: pickled objects, other names, texts in X, or lengths that differ raise `InputError`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            names = sorted(file)
            wanted = ["X", "y"] if labelled else ["X"]
            need(set(wanted) <= set(names), f"an .npz file must hold arrays {' and '.join(wanted)}", arrays=names)
            x, y = file["X"], file["y"] if labelled else None
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"the file must be NumPy's .npz without pickled objects; got {str(path)!r}: {error}"
        ) from error
    need_numbers(x)
    if y is None:
        return Arrays(x.astype(np.float64), (None,) * len(x))
    need(y.ndim == 1 and len(y) == len(x), "y must have one label per row of X", y=y.shape, X=x.shape)
    need(y.dtype.kind in "fiubU", "y must hold numbers or texts", dtype=str(y.dtype))
    labels = y.tolist() if y.dtype.kind == "U" else y.astype(np.float64).tolist()
    return Arrays(x.astype(np.float64), tuple(labels))


def read_npy(path: Path, *, labelled: bool) -> Arrays:
    """A .npy file of records without labels, in memory; with labels they come in two files, or in one .npz file."""
    need(not labelled, "a .npy file has no labels", path=str(path), remedy="np.savez('data.npz', X=X, y=y)")
    x = open_npy(path)
    need_numbers(x)
    return Arrays(np.asarray(x, dtype=np.float64), (None,) * len(x))


def read_ids(path: Path | str, name: str) -> npt.NDArray[Any]:
    """The array of ids in an .npz file that `read_npz` has read."""
    with np.load(path, allow_pickle=False) as file:
        need(name in file, "the unit must be an array of the file", unit=name, remedy=f"it has {', '.join(file)}")
        need(name not in ("X", "y"), "the unit must not be a feature or the target as well", unit=name)
        ids: npt.NDArray[Any] = file[name]
        return ids


def need_numbers(x: npt.NDArray[Any]) -> None:
    """Refuse features that are no numbers, no rows of columns, or no record."""
    need(x.dtype.kind in "fiub", "X must hold numbers", dtype=str(x.dtype))
    need(x.ndim >= 2, "X must have a row per record and a column per feature", shape=x.shape)
    need(len(x) > 0, "the file must hold at least one record", X=x.shape)
