"""Scattering features of images: wavelets, moduli and averages, as Oyallon and Mallat (2015) defined them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpsrm.core.errors import need, need_extra

Extractor = Callable[[Tensor], Tensor]
"""From images (B, C, H, W) between 0 and 1 to maps (B, 3k, h, w), each image's from that image alone."""

_SCALES = 2
"""Averages are over 2² × 2² pixels, as in Tramèr and Boneh (2021)."""


def scattering(shape: tuple[int, ...]) -> Extractor:
    """From images (B, C, H, W) to (B, 81·C, H/4, W/4): the extractor for images of this shape (C, H, W)."""
    need_extra("kymatio", extra="features")
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D  # kymatio.torch needs an older SciPy

    need(min(shape[1:]) >= 8, "scattering needs images of 8 × 8 pixels or more", shape=shape)
    transform = ScatteringTorch2D(J=_SCALES, shape=tuple(shape[1:]))

    def extract(images: Tensor) -> Tensor:
        maps = torch.as_tensor(transform(images.contiguous()))  # (B, C, 81, h, w)
        return maps.flatten(1, 2)

    return extract
