"""Readers for the two formats of the public image sets: IDX (MNIST, Fashion-MNIST) and CIFAR's binary files.

Shapes: N images of C channels, H rows and W columns; pixels are bytes as in the file, labels int64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need

_BYTES = 0x08
"""IDX's code for unsigned bytes, the only kind of value the image sets use."""
_CIFAR_SHAPE = (3, 32, 32)


def read_idx(path: Path) -> Tensor:
    """The array of an IDX file of unsigned bytes, in its own shape.

    Edge cases: raises `InputError` for another kind of values, a header that is cut, and a length that does not fit.
    """
    content = _bytes_of(path)
    kind = content[:4] if len(content) >= 4 else b""
    right = len(kind) == 4 and kind[:2] == b"\0\0" and kind[2] == _BYTES
    need(right, "an IDX file of bytes begins with 0, 0, 8 and its number of axes", file=str(path), got=kind.hex())
    axes = kind[3]
    start = 4 + 4 * axes
    need(len(content) >= start, "an IDX file must hold its whole header", file=str(path), bytes=len(content))
    shape = struct.unpack(f">{axes}I", content[4:start])
    promised, found = math.prod(shape), len(content) - start
    need(found == promised, "an IDX file must hold as many values as it says", file=str(path), says=promised, has=found)
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def read_idx_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 1, H, W) as bytes, and their labels (N,)."""
    pixels_NHW, labels_N = read_idx(images), read_idx(labels)
    need(pixels_NHW.ndim == 3, "an image file must have three axes", file=str(images), axes=pixels_NHW.ndim)
    need(labels_N.ndim == 1, "a label file must have one axis", file=str(labels), axes=labels_N.ndim)
    n, m = len(pixels_NHW), len(labels_N)
    need(n == m, "there must be as many labels as images", images=n, labels=m, file=str(labels))
    return pixels_NHW.unsqueeze(1), labels_N.long()


def read_cifar(paths: Sequence[Path], *, labels: int, classes: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) as bytes, and their labels (N,), of some CIFAR binary files in a row.

    Args:
        paths: the files.
        labels: bytes of labels before each image: 1 in CIFAR-10; 2 in CIFAR-100, whose last, the fine one, is taken.
        classes: how many classes there are; a larger label is an error.
    """
    size = labels + math.prod(_CIFAR_SHAPE)
    rows = []
    for path in paths:
        content = _bytes_of(path)
        whole = len(content) > 0 and len(content) % size == 0
        need(whole, f"a CIFAR file must hold whole records of {size} bytes", file=str(path), bytes=len(content))
        rows.append(np.frombuffer(content, np.uint8).reshape(-1, size))
    table = np.concatenate(rows)
    found = table[:, labels - 1].astype(np.int64)
    need(int(found.max()) < classes, "labels must be below the number of classes", largest=int(found.max()))
    return torch.from_numpy(table[:, labels:].reshape(-1, *_CIFAR_SHAPE).copy()), torch.from_numpy(found)


def scaled(pixels: Tensor, *, centre: float, spread: float) -> Tensor:
    """Pixels as numbers: (byte/255 − centre)/spread, by public constants and never by statistics of the records.

    >>> scaled(torch.tensor([0, 255], dtype=torch.uint8), centre=0.5, spread=0.5).tolist()
    [-1.0, 1.0]
    """
    return pixels.float().div_(255).sub_(centre).div_(spread)


def _bytes_of(path: Path) -> bytes:
    """A file's content, or an error that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error
