"""Records that stay on disk: memory-mapped arrays, of which a draw reads its own rows and nothing else.

Shapes: n records, B drawn ones.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need
from dpsrm.core.tracking import Track, silent
from dpsrm.core.tree import leaves, mapped
from dpsrm.data.conversion import Indices, as_inputs, as_positions, as_targets, need_unmasked
from dpsrm.data.records import need_finite

Array = npt.NDArray[Any]
BLOCK = 2**24
"""Bytes of a file that are in memory at once while it is gone through."""
_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "b1"}


def is_mapped(tree: Any) -> bool:
    """Whether an array of the tree lies in a file."""
    return any(isinstance(leaf, np.memmap) for leaf in leaves(tree))


@dataclass(frozen=True, eq=False)
class MappedRecords:
    """Memory-mapped arrays with a row per record: a pair (inputs, targets), or a dictionary or other tree of them.

    A batch is what `Records` or `TreeRecords` would give of the same arrays. Reading B records takes time and memory
    for B, whatever n is.

    A file that is written to while it is trained on is refused at the next draw, if its size or time of change tells:
    best effort. Writing and cutting (`write`, `np.save`, `truncate`) tell, unless within the same tick of the file
    system's clock. A map tells at its first write to a page that is clean; not while the page is still dirty of an
    earlier write, on tmpfs not after the page was touched, and not from other computers that share the disk.

    Guarantee: what was not noticed gives no second release under the noise of a first: a release that is made again
    must be of the same sum (`SumLog`), or a resume is refused. A row that is moved to another place while a draw
    reads may count twice in its sum, for which the noise is not made: do not write to records that are trained on.

    Edge cases: numbers are checked to be finite when they are drawn, not before. A file that is deleted or replaced by
    another of its name stays readable for those who have it mapped, unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     x = np.memmap(file, dtype=np.uint8, mode="w+", shape=(4, 2))
    ...     data = MappedRecords((x, np.array([0, 1, 0, 1])))
    ...     data.take(np.array([3]))
    (tensor([[0, 0]], dtype=torch.uint8), tensor([1]))
    """

    tree: Any
    track: Track = silent
    files: tuple[tuple[str, tuple[int, int, int]], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check everything that can be checked without reading the records."""
        arrays = [_array(leaf) for leaf in leaves(self.tree)]
        sizes = sorted({len(array) for array in arrays})
        need(len(sizes) == 1, "every array must have a row per record", rows=sizes)
        need(sizes[0] > 0, "data must hold at least one record")
        kept = iter(arrays)
        object.__setattr__(self, "tree", mapped(lambda _: next(kept), self.tree))
        files = tuple((path, _stamp(path) or (0, 0, 0)) for path in dict.fromkeys(_paths(arrays)))
        object.__setattr__(self, "files", files)

    def __len__(self) -> int:
        return len(leaves(self.tree)[0])

    def take(self, indices: Indices) -> Any:
        """The records at `indices`, in their order, repeats included."""
        positions = as_positions(indices, len(self))
        self.need_unchanged()
        read = mapped(lambda array: _rows(array, positions), self.tree)
        if isinstance(read, (tuple, list)) and len(read) == 2:
            read = as_inputs(read[0]), as_targets(read[1])
        else:
            read = mapped(as_inputs, read)
        for tensor in leaves(read):
            need_finite(tensor, "features", rows=positions.tolist())
        self.need_unchanged()
        return read

    def blocks(self) -> Iterator[bytes | memoryview]:
        """All bytes of all arrays, a block at a time, after their types and shapes."""
        arrays = leaves(self.tree)
        yield from (f"{array.dtype} {array.shape}".encode() for array in arrays)
        parts = [(array, start, size) for array in arrays for start, size in _cuts(array)]
        for array, start, size in self.track(parts, len(parts), "fingerprint of the records"):
            yield np.ascontiguousarray(array[start : start + size]).reshape(-1).view(np.uint8).data
            _let_go(array)
        self.need_unchanged()

    def column(self, at: int) -> Iterator[Array]:
        """One of the arrays, a block at a time."""
        array = leaves(self.tree)[at]
        for start, size in _cuts(array):
            yield np.asarray(array[start : start + size])
            _let_go(array)

    def need_unchanged(self) -> None:
        """Refuse to go on with a file that was written to."""
        for path, then in self.files:
            now = _stamp(path)
            if now is not None and now[0] == then[0] and now != then:
                raise InputError(
                    f"a file of records must stay as it is while a model is trained on it; {path!r} was written to; "
                    "nothing was released; restore it and resume, or train a new run"
                )


def _array(leaf: Any) -> Array:
    """An array of a tree as NumPy's, with a row per record and numbers that torch knows."""
    need_unmasked(leaf, "records")
    array = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else np.asanyarray(leaf)
    need(array.ndim >= 1, "every array must have a row per record", shape=array.shape)
    kind = f"{array.dtype.kind}{array.dtype.itemsize}"
    need(kind in _KINDS, "memory-mapped records must be numbers", dtype=str(array.dtype), remedy="encode text first")
    if isinstance(array, np.memmap) and array.flags.writeable:
        array.flush()  # from here on, writing to it moves the file's time of change (not on tmpfs)
    return array


def _paths(arrays: list[Array]) -> Iterator[str]:
    """The files behind the arrays, and that they are as long as the arrays say."""
    for array in arrays:
        name = getattr(array, "filename", None)
        if isinstance(name, (str, os.PathLike)):
            yield os.fspath(name)


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Which file it is, its size and its time of change; None if it is gone."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _rows(array: Array, positions: npt.NDArray[np.int64]) -> Tensor:
    """Some rows as a tensor of their own; what torch has no type for becomes int64."""
    rows = np.take(np.asarray(array), positions, axis=0)
    if rows.dtype.kind == "u" and rows.dtype.itemsize > 1:
        rows = rows.astype(np.int64)
    return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="), copy=False))


def _cuts(array: Array) -> list[tuple[int, int]]:
    """Where blocks of about `BLOCK` bytes begin, and how many rows they have."""
    width = max(1, array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)))
    step = max(1, BLOCK // width)
    return [(start, min(step, len(array) - start)) for start in range(0, len(array), step)]


def _let_go(array: Array) -> None:
    """Let the system take back what was read of a map, which it keeps as long as there is room, but not for us."""
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and getattr(array, "mode", "") == "r" and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)


def open_npy(path: Any) -> Array:
    """A .npy file memory-mapped, read-only; `InputError` if it is none, is cut off, or holds objects."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError) as error:
        raise InputError(f"the file must be a whole .npy array of numbers; got {str(path)!r}: {error}") from error
    need(isinstance(array, np.memmap) and array.ndim >= 1, "a .npy file must hold a row per record", path=str(path))
    found: Array = array
    return found
