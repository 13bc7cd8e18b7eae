"""What does secure randomness cost? ChaCha20 indices and noise against torch's, beside the step they belong to.

    dpsrm bench randomness --model cnn4 --batch 512

The noise is added to zeros: there are no records here. Medians of CPU time over interleaved rounds.
`overhead` = (secure − torch's) ÷ (step + torch's): how much longer a step takes because its randomness is secure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from dpsrm.bench.interleaved import interleaved
from dpsrm.bench.models import build
from dpsrm.bench.two_points import variant
from dpsrm.core.events import Sampling, Scheme
from dpsrm.core.secret import Streams
from dpsrm.mechanisms.airlock import gaussian_noise, on_grid
from dpsrm.sampling import draw

_RECORDS = 60_000


def variants(model: str, batch: int) -> dict[str, Callable[[], Any]]:
    """The step alone, and one release's randomness by both means."""
    module = build(model, 1).module
    size = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    zero_P = torch.zeros(size, dtype=torch.float64)
    streams = Streams.secure()
    sampling = Sampling(scheme=Scheme.POISSON, population=_RECORDS, batch=batch)

    def secure() -> None:
        streams.seek(17)
        torch.default_generator.manual_seed(streams.public_seed(17))
        draw(sampling, streams.sampling)
        on_grid(zero_P + gaussian_noise(1.0, size, streams.noise), 1.0)

    def fast() -> None:
        torch.nonzero(torch.rand(_RECORDS) < batch / _RECORDS)
        torch.add(zero_P, torch.randn(size, dtype=torch.float64))

    return {"step": variant("ours", model, batch), "secure": secure, "torch": fast, "seek": lambda: streams.seek(17)}


def run(model: str = "cnn4", batch: int = 512, repeats: int = 31) -> dict[str, Any]:
    """Measure; see the module's first lines for how."""
    torch.set_num_threads(1)
    times = interleaved(variants(model, batch), repeats)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    overhead = (median["secure"] - median["torch"]) / (median["step"] + median["torch"])
    shown = {f"{name}_ms": round(1e3 * value, 3) for name, value in median.items()}
    return {"model": model, "batch": batch, "repeats": repeats, **shown, "overhead": round(overhead, 4)}
