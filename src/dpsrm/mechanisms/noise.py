"""Gaussian noise that does not leak through its low bits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.randomness import block_states
from dpsrm.core.reused import buffer
from dpsrm.core.secret import Coordinates
from dpsrm.mechanisms.normals import fill_normals

LARGE = 2**16
"""Above so many coordinates, one normal each and a release rounded to a grid, instead of four normals each.

The noise of a large release is made in blocks of so many coordinates, each from numbers of its own, so that it does not
depend on how many processes make it.
"""

_GRID_BITS = 10


def gaussian_noise(std: float, size: int | Coordinates, stream: np.random.Generator) -> Tensor:
    """`size` float64 draws of N(0, std²), each the halved sum of four independent normals (one, if `size` is large).

    A single floating-point Gaussian can only take some of the doubles near a value, which an attacker can use to tell
    neighbours apart (Mironov 2012; Jin et al. 2022). The sum of four hides which ones
    (Holohan & Braghin 2021, "Secure random sampling in differential privacy", §4).

    Args:
        size: how many; or, of the noise of a vector, the part for some `Coordinates`, which begin with a block.

    Edge cases: above `LARGE` coordinates four draws of each would cost more than they are worth; what is released must
    then go through `on_grid`, which removes the low bits.

    >>> gaussian_noise(2.0, 3, np.random.default_rng(0)).shape
    torch.Size([3])
    """
    part = Coordinates(0, size, of=size) if isinstance(size, int) else size
    if part.of > LARGE:
        return torch.from_numpy(_large(part, stream)).mul_(std)
    need(part.whole or not part.size, "the noise of a small vector is made at once", part=part)
    halves = np.add.reduce(stream.standard_normal((4, part.size)), axis=0)
    halves *= std / 2
    return torch.from_numpy(halves)


def _large(part: Coordinates, stream: np.random.Generator) -> npt.NDArray[np.float64]:
    """A standard normal for each coordinate, block by block; the stream then stands behind all blocks of the vector."""
    need(part.begin % LARGE == 0 or not part.size, "noise begins with a block", begin=part.begin)
    found, last = buffer(8 * part.size).view(np.float64), -(-part.of // LARGE)
    for block, _ in enumerate(block_states(stream, 0, last)):
        begin, end = (min(max(at * LARGE, part.begin), part.end) for at in (block, block + 1))
        if end > begin:
            fill_normals(found[begin - part.begin : end - part.begin], stream)
    return found


def on_grid(noisy: Tensor, std: float, *, of: int | None = None) -> Tensor:
    """A large `noisy` sum rounded, in its place, to multiples of the public power of two between std/2048 and std/1024.

    Guarantee: rounding to a grid that depends on public numbers alone is post-processing of sum + noise; it maps the
    2^42 or so doubles of each cell to one value, so which of them the generator could reach is no longer visible.

    Args:
        of: how many numbers the whole vector has, if `noisy` is a part of it.

    Edge cases: a small vector (see `gaussian_noise`) is left as it is. Rounding adds less than 1e-7 of the variance.

    >>> float(on_grid(torch.full((LARGE + 1,), 0.30001, dtype=torch.float64), 1.0)[0] * 1024)
    307.0
    """
    if (noisy.numel() if of is None else of) <= LARGE:
        return noisy
    cell = grid(std)
    return noisy.div_(cell).round_().mul_(cell)  # a power of two: both are exact


def grid(std: float) -> float:
    """2^(⌊log₂ std⌋ − 10): the distance of neighbouring values of a large release.

    >>> grid(1.5), grid(0.9)
    (0.0009765625, 0.00048828125)
    """
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - _GRID_BITS)
