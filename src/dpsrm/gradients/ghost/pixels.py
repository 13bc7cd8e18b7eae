"""Products of a linear layer, as convolutions of 1 × 1, where torch computes these faster than its matrix products.

torch leaves products of float32 matrices to MKL, which keeps its fastest code for Intel's processors, and convolutions
to oneDNN, which does not. A layer's rows are the pixels of one image per example, with the channels last, so that
nothing is copied. All of it runs under vmap, by torch's own rules for a convolution: no code here sees two examples.

The choice depends on the processor, on settings of torch and on one example's shapes, never on a clock: a run that is
resumed makes the same choices, and so do neighbours.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEWEST_ROWS = 64
NARROWEST = 256
MOST_UNEQUAL = 4
"""Measured on an AMD EPYC (Zen 4), one thread: time of forward and input gradient ÷ that of matrix products.

16 examples of 64 rows: 256 → 256 0.96, 256 → 1024 0.92, 1024 → 256 0.93, 768 → 768 0.93, 1024 → 4096 0.94; of 197 rows
0.90, 0.86, 0.87, 0.90 (the first four). Not faster: 32 rows 0.97 to 1.11, 16 rows 1.08 to 1.18, 2 examples of 64 rows
1.12 and 1.22; 128 → 128 1.08, 256 → 64 1.21; 256 → 4096 1.15, 256 → 32 000 1.39 (9 examples).
"""

_ONEDNN: Any = torch.backends.mkldnn
_MKL: Any = torch.backends.mkl


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """x·weightᵀ, as `F.linear` has it, under vmap; the weight must be the same for all examples."""
    if not (_large(x, weight) and _ordinary(x, weight) and _available()):
        return F.linear(x, weight)
    outputs, inputs = weight.shape
    pixels = x.reshape(1, 1, -1, inputs).permute(0, 3, 1, 2)
    filters = weight.view(outputs, 1, 1, inputs).permute(0, 3, 1, 2)  # by which torch knows that channels are last
    images = F.conv2d(pixels, filters).permute(0, 2, 3, 1)
    found: Tensor = torch.ops.aten._unsafe_view(images, (*x.shape[:-1], outputs))  # no view: others may write into it
    return found


def _large(x: Tensor, weight: Tensor) -> bool:
    """Whether convolutions are faster, by the shapes of one example."""
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        return False
    narrow, wide = sorted(weight.shape)
    return narrow >= NARROWEST and wide <= MOST_UNEQUAL * narrow and x.numel() >= FEWEST_ROWS * x.shape[-1]


def _ordinary(x: Tensor, weight: Tensor) -> bool:
    """Whether both are plain float32 tensors of the processor, as they lie in memory."""
    return type(x) is Tensor and type(weight) in (Tensor, nn.Parameter) and all(map(_plain, (x, weight)))


def _plain(tensor: Tensor) -> bool:
    """The same for one of them."""
    plain = tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.layout is torch.strided
    return plain and tensor.is_contiguous()


def _available() -> bool:
    """Whether oneDNN computes convolutions here, in true float32, and better than MKL its products."""
    precise = _ONEDNN.conv.fp32_precision in ("none", "ieee") and not torch.is_autocast_enabled("cpu")
    return precise and bool(_ONEDNN.enabled) and _slow_products()


@lru_cache(maxsize=1)
def _slow_products() -> bool:
    """Whether products are MKL's on a processor of AMD's, the only other ones that were measured."""
    if not (_ONEDNN.is_available() and _MKL.is_available()):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
