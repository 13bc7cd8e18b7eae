"""Gaussian noise that does not leak through its low bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]


def gaussian_noise(std: float, size: int, stream: np.random.Generator) -> Tensor:
    """`size` float64 draws of N(0, std²), each the halved sum of four independent normals.

    A single floating-point Gaussian can only take some of the doubles near a value, which an attacker can use to tell
    neighbours apart (Mironov 2012; Jin et al. 2022). The sum of four hides which ones
    (Holohan & Braghin 2021, "Secure random sampling in differential privacy", §4).

    >>> gaussian_noise(2.0, 3, np.random.default_rng(0)).shape
    torch.Size([3])
    """
    quarters = stream.standard_normal((4, size))
    return torch.from_numpy(quarters.sum(axis=0) * (std / 2))


def gaussian_rows(stds_T: Floats, size: int, stream: np.random.Generator, *, begin: Callable[[int], None]) -> Floats:
    """(T, size) draws: row t is what `gaussian_noise(stds_T[t], size, stream)` gives after `begin(t)` was called.

    >>> rows = gaussian_rows(np.array([1.0, 3.0]), 2, np.random.default_rng(0), begin=lambda t: None)
    >>> stream = np.random.default_rng(0)
    >>> [bool(np.allclose(row, gaussian_noise(std, 2, stream))) for row, std in zip(rows, (1.0, 3.0))]
    [True, True]
    """
    quarters = np.empty((len(stds_T), 4, size))
    for t in range(len(stds_T)):
        begin(t)
        stream.standard_normal(out=quarters[t])
    rows: Floats = quarters.sum(axis=1) * (stds_T / 2)[:, None]
    return rows
