"""Gaussian noise that does not leak through its low bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
