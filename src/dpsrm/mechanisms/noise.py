"""Gaussian noise that does not leak through its low bits."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LARGE = 2**16
"""Above so many coordinates, one normal each and a release rounded to a grid, instead of four normals each."""

_GRID_BITS = 10


def gaussian_noise(std: float, size: int, stream: np.random.Generator) -> Tensor:
    """`size` float64 draws of N(0, std²), each the halved sum of four independent normals (one, if `size` is large).

    A single floating-point Gaussian can only take some of the doubles near a value, which an attacker can use to tell
    neighbours apart (Mironov 2012; Jin et al. 2022). The sum of four hides which ones
    (Holohan & Braghin 2021, "Secure random sampling in differential privacy", §4).

    Edge cases: above `LARGE` coordinates four draws of each would cost more than they are worth; what is released must
    then go through `on_grid`, which removes the low bits.

    >>> gaussian_noise(2.0, 3, np.random.default_rng(0)).shape
    torch.Size([3])
    """
    if size > LARGE:
        return torch.from_numpy(stream.standard_normal(size) * std)
    halves = np.add.reduce(stream.standard_normal((4, size)), axis=0)
    halves *= std / 2
    return torch.from_numpy(halves)


def on_grid(noisy: Tensor, std: float) -> Tensor:
    """A large `noisy` sum rounded to multiples of the public power of two between std/2048 and std/1024.

    Guarantee: rounding to a grid that depends on public numbers alone is post-processing of sum + noise; it maps the
    2^42 or so doubles of each cell to one value, so which of them the generator could reach is no longer visible.

    Edge cases: a small vector (see `gaussian_noise`) is left as it is. Rounding adds less than 1e-7 of the variance.

    >>> float(on_grid(torch.full((LARGE + 1,), 0.30001, dtype=torch.float64), 1.0)[0] * 1024)
    307.0
    """
    if noisy.numel() <= LARGE:
        return noisy
    cell = grid(std)
    return torch.round(noisy / cell) * cell


def grid(std: float) -> float:
    """2^(⌊log₂ std⌋ − 10): the distance of neighbouring values of a large release.

    >>> grid(1.5), grid(0.9)
    (0.0009765625, 0.00048828125)
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)
