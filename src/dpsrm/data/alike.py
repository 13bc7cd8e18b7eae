"""Whether two datasets, or two tensors, hold the same records: what each is known by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_READ = 2**30
"""Bytes of an array that are compared by content; larger ones are known by where they lie in memory."""


def known_as(dataset: Any) -> Hashable:
    """The same for two datasets of one class that are alike in all they hold but their transforms.

    That is how images are often given twice, once plain and once flipped. Texts and numbers are compared; arrays and
    lists by where they lie in memory, or, of a dataset that says which file or folder it was read from, by content.

    Edge cases: an object that holds nothing is itself and no other.

    >>> class Images:
    ...     def __init__(self, pixels, transform=None):
    ...         self.pixels, self.transform = pixels, transform
    >>> pixels = np.zeros((3, 2))
    >>> known_as(Images(pixels)) == known_as(Images(pixels, np.flip)), known_as(Images(pixels + 0)) == known_as(pixels)
    (True, False)
    """
    held = {name: value for name, value in getattr(dataset, "__dict__", {}).items() if "transform" not in name}
    if not held:
        return id(dataset)
    places = [value for value in held.values() if isinstance(value, (str, os.PathLike))]
    read = any(map(os.path.exists, places))  # Path's raises for a long text
    return type(dataset), tuple((name, _content(value) if read else _itself(value)) for name, value in held.items())


def _itself(value: Any) -> Hashable:
    """A text or number, or which object it is; of arrays, which memory or file."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (str, bytes, int, float, type(None))):
        return value
    if isinstance(value, np.memmap) and value.filename is not None:
        return str(value.filename), value.offset, value.shape, value.strides
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.strides, str(value.dtype)
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    return id(value)


def _content(value: Any) -> Hashable:
    """The same, but of lists and arrays in memory what is in them."""
    if isinstance(value, Tensor) and value.layout is torch.strided and value.dtype is not torch.bfloat16:
        value = value.detach().cpu().numpy()
    if type(value) is np.ndarray and value.nbytes <= _READ and value.dtype != object:
        return value.shape, str(value.dtype), hashlib.blake2b(np.ascontiguousarray(value).data).digest()
    if isinstance(value, (list, tuple)):
        return tuple(map(_content, value))
    if isinstance(value, dict):
        return tuple((name, _content(each)) for name, each in value.items())
    return _itself(value)


def rows_in_memory(tensors: Sequence[Tensor]) -> tuple[Hashable, npt.NDArray[np.int64]]:
    """Which memory the rows of some tensors lie in, and which row of it each is: the same for slices that overlap.

    >>> whole = torch.zeros(9, 2)
    >>> rows_in_memory([whole])[0] == rows_in_memory([whole[4:]])[0], rows_in_memory([whole[4:]])[1].tolist()
    (True, [4, 5, 6, 7, 8])
    """
    count = len(tensors[0])
    if any(each.layout is not torch.strided or each.device.type == "meta" for each in tensors):
        return tuple(map(id, tensors)), np.arange(count)
    steps = [each.stride(0) if count > 1 else max(1, each.shape[1:].numel()) for each in tensors]
    begins = [each.storage_offset() // step if step else 0 for each, step in zip(tensors, steps, strict=True)]
    first = next((begin for begin, step in zip(begins, steps, strict=True) if step), 0)
    name = tuple(
        (t.untyped_storage().data_ptr(), t.dtype, t.shape[1:], t.stride()[1:], step)
        + ((begin - first, t.storage_offset() % step) if step else (t.storage_offset(),))
        for t, step, begin in zip(tensors, steps, begins, strict=True)
    )
    return name, first + (np.arange(count) if any(steps) else np.zeros(count, dtype=np.int64))
