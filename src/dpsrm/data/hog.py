"""Histograms of oriented gradients (Dalal and Triggs, 2005): where edges point, in small cells of an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from dpsrm.core.errors import need
from dpsrm.data.scattering import Extractor

_CELL, _BLOCK, _ANGLES = 4, 2, 9
"""Pixels and cells at a side, and directions between 0 and π."""


def hog(shape: tuple[int, ...]) -> Extractor:
    """From images (B, C, H, W) to maps (B, 36, h, w): a histogram for each block of 2 × 2 cells of 4 × 4 pixels."""
    need(min(shape[1:]) >= _CELL * _BLOCK, "hog needs images of 8 × 8 pixels or more", shape=shape)
    return _extract


def _extract(images: Tensor) -> Tensor:
    """The strongest channel's gradient votes for the two nearest directions; blocks have length 1 or less."""
    across, down = _differences(images)
    size, strongest = across.square().add(down.square()).max(dim=1, keepdim=True)
    across, down = across.gather(1, strongest), down.gather(1, strongest)
    place = torch.remainder(torch.atan2(down, across), math.pi) * (_ANGLES / math.pi)
    votes = torch.zeros(len(images), _ANGLES, *images.shape[2:])
    low = place.floor()
    share = place - low
    for index, weight in ((low, 1 - share), (low + 1, share)):
        votes.scatter_add_(1, index.long() % _ANGLES, weight * size.sqrt())
    cells = F.avg_pool2d(votes, _CELL)
    places = [side - _BLOCK + 1 for side in cells.shape[2:]]
    blocks: Tensor = F.unfold(cells, _BLOCK).reshape(len(images), -1, *places)
    return blocks / blocks.square().sum(dim=1, keepdim=True).add(1e-6).sqrt()


def _differences(images: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences to the right and down; 0 at the borders."""
    across, down = torch.zeros_like(images), torch.zeros_like(images)
    across[..., 1:-1] = images[..., 2:] - images[..., :-2]
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    return across, down
