"""Files of labelled records that are larger than memory: cells and numbers stay on disk, a draw is encoded when drawn.

Shapes: n records, B drawn ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need
from dpsrm.core.tracking import Track, silent
from dpsrm.data.arrays import Arrays, need_numbers
from dpsrm.data.conversion import Indices, as_positions
from dpsrm.data.mapped import MappedRecords, open_npy
from dpsrm.data.tables import Cell, Table

IN_MEMORY = 2**30
"""Encoded tables of at most so many bytes are kept in memory, if nobody says."""
Source = Table | Arrays
Encode = Callable[[Source], tuple[npt.NDArray[Any], npt.NDArray[Any]]]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read: whether encoded records are kept in memory (None: up to 1 GB of them), and who shows bars."""

    in_memory: bool | None = None
    track: Track = silent

    def keeps(self, size: int) -> bool:
        """Whether so many bytes of records are kept in memory."""
        return size <= IN_MEMORY if self.in_memory is None else self.in_memory


class StoredRows(Protocol):
    """Rows of a file, some of them at a time."""

    def __len__(self) -> int: ...

    def at(self, positions: npt.NDArray[np.int64]) -> Source:
        """The rows at some positions, as a file of just these rows would be read."""

    def blocks(self) -> Iterator[bytes | memoryview]:
        """All there is, for a fingerprint."""

    def labels(self, name: str | None) -> dict[Cell, int]:
        """The different labels, each with the first row (from 0) that has it."""


@dataclass(frozen=True, eq=False)
class EncodedRecords:
    """Records on disk, encoded when they are drawn: the encoder looks at nothing but each record, so it can.

    Edge cases: a cell that cannot be encoded is found when it is drawn; rows in that error are counted in the draw.
    """

    rows: StoredRows
    encode: Encode

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the records at `indices`, in their order, repeats included."""
        positions = as_positions(indices, len(self))
        some = positions if len(positions) else np.zeros(1, dtype=np.int64)
        found = self.rows.at(some)
        try:
            inputs, targets = self.encode(found)
        except InputError as error:
            raise InputError(f"{error} (rows are counted within this draw of {len(some)} records)") from error
        return torch.from_numpy(inputs)[: len(positions)], torch.from_numpy(targets)[: len(positions)]

    def then(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> EncodedRecords:
        """The same rows, their features changed once more, those of each record by themselves."""

        def encode(source: Source) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            inputs, targets = self.encode(source)
            return change(inputs), targets

        return EncodedRecords(self.rows, encode)

    def blocks(self) -> Iterator[bytes | memoryview]:
        """All there is, for a fingerprint."""
        return self.rows.blocks()


class ArrayFile:
    """A .npy file of records beside a .npy file of their labels, both memory-mapped.

    Guarantee: the fingerprint is of the bytes of both files, texts included, and both are watched while records are
    read, as far as `MappedRecords` can.
    """

    def __init__(self, path: Path, target: str | None) -> None:
        """Open both; the labels are named as the target."""
        need(
            target is not None and target.endswith(".npy"),
            "a .npy file of records needs the .npy file of their labels as its target",
            target=target,
            remedy=f"give --data {path} --target LABELS.npy; or save both by np.savez('data.npz', X=X, y=y)",
        )
        self._x, self._y = open_npy(path), open_npy(str(target))
        need_numbers(self._x)
        x, y = self._x.shape, self._y.shape
        need(len(y) == 1 and y[0] == x[0], "there must be one label per record", labels=y, records=x)
        kind = self._y.dtype
        need(kind.kind in "fiubU" and kind.itemsize > 0, "labels must be numbers or texts", dtype=str(kind))
        self.n = len(self._x)
        self.head = Arrays(np.empty((0, *x[1:])), ())

    def opened(self, track: Track) -> ArrayFile:
        """Ready to be read; nothing is copied."""
        y = self._y.view(np.uint8).reshape(self.n, -1) if self._texts else self._y  # the very bytes of the file
        self._files = MappedRecords((self._x, y), track)
        return self

    @property
    def _texts(self) -> bool:
        """Whether labels are texts."""
        return self._y.dtype.kind == "U"

    def __len__(self) -> int:
        return self.n

    def at(self, positions: npt.NDArray[np.int64]) -> Arrays:
        """Some records with their labels."""
        self._files.need_unchanged()
        found = np.take(np.asarray(self._x), positions, axis=0).astype(np.float64)
        labels = _labels(np.take(np.asarray(self._y), positions))
        self._files.need_unchanged()
        return Arrays(found, labels)

    def blocks(self) -> Iterator[bytes | memoryview]:
        """All bytes of both files; before them, how those of texts are to be read."""
        if self._texts:
            yield str(self._y.dtype).encode()
        yield from self._files.blocks()

    def labels(self, name: str | None) -> dict[Cell, int]:
        """The different labels and where each is first."""
        found: dict[Cell, int] = {}
        for start in range(0, self.n, 2**22):
            values, first = np.unique(np.asarray(self._y[start : start + 2**22]), return_index=True)
            for value, row in zip(_labels(values), first.tolist(), strict=True):
                found.setdefault(value, start + row)
        return found

    def longest(self) -> tuple[float, int]:
        """The largest norm of a record, and which it is."""
        best, at, start = -1.0, 0, 0
        for block in self._files.column(0):
            norms = np.linalg.norm(block.reshape(len(block), -1).astype(np.float64), axis=1)
            if float(norms.max()) > best:
                best, at = float(norms.max()), start + int(norms.argmax())
            start += len(block)
        return best, at


def _labels(values: npt.NDArray[Any]) -> tuple[Cell, ...]:
    """Labels as cells: texts, or numbers."""
    if values.dtype.kind != "U":
        return tuple(values.astype(np.float64).tolist())
    try:
        return tuple(values.tolist())
    except (SystemError, ValueError) as error:  # a number that is no character
        raise InputError(f"labels must be texts of characters; a cell of the file is none: {error}") from error
