"""What `private/` keeps of a training: its journal, and measures on test records. Exact, not for others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dpsrm.report.facts import read_private_json
from dpsrm.runs.folder import RunFolder

Points = list[tuple[float, float]]

METRICS = {"log_loss": "log-loss", "auc": "AUC", "error": "0/1 error", "r2": "R²", "rmse": "RMSE", "mae": "MAE"}
"""The measures, in the words of tables."""


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The curves of a run against its steps; empty where nothing was written.

    Attributes:
        clipped: by part of the query, the share of examples whose contribution was scaled down.
        signal: estimated size of the noiseless sum ÷ size of the noise, from what was released.
        nonfinite: examples that were left out because their gradient was no number.
        metrics: by model ("test", "reference") and measure; `half_width` likewise.
    """

    loss: Points = field(default_factory=list)
    clipped: dict[str, Points] = field(default_factory=dict)
    signal: Points = field(default_factory=list)
    direction: Points = field(default_factory=list)
    nonfinite: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def read_journal(folder: RunFolder) -> Journal:
    """Read `private/`; what a resumed run wrote twice counts once, the last."""
    lines = _lines(folder)
    clipped: dict[str, Points] = {}
    for step, line in lines.items():
        for name, share in zip(line.get("parts", []), line["private"]["clipped"], strict=False):
            clipped.setdefault(str(name), []).append((float(step), float(share)))
    return Journal(
        loss=[(float(step), float(line["private"]["loss"])) for step, line in lines.items()],
        clipped=clipped,
        signal=[(float(step), _signal(line)) for step, line in lines.items() if line.get("noise_norm")],
        direction=[(float(step), float(line["direction_norm"])) for step, line in lines.items()],
        nonfinite=sum(int(line["private"]["nonfinite"]) for line in lines.values()),
        metrics=read_private_json(folder, "metrics.json"),
    )


def recent(points: Sequence[tuple[float, float]]) -> float:
    """The mean over the second half; NaN if there is nothing."""
    values = [y for _, y in points[len(points) // 2 :] if math.isfinite(y)]
    return fmean(values) if values else math.nan


def smoothed(points: Points, *, window: int = 9) -> Points:
    """A running mean, so that a noisy curve can be read."""
    half = window // 2
    pieces = ([y for _, y in points[max(0, k - half) : k + half + 1] if math.isfinite(y)] for k in range(len(points)))
    return [(x, fmean(near)) for (x, _), near in zip(points, pieces, strict=True) if near]


def _signal(line: dict[str, Any]) -> float:
    """√(‖sum + noise‖² − E‖noise‖²) ÷ √E‖noise‖², 0 where noise hides all."""
    noise, heard = float(line["noise_norm"]), float(line["release_norm"])
    return math.sqrt(max(heard * heard - noise * noise, 0.0)) / noise


def _lines(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """The journal's lines by step, in their order; a torn last line is left out."""
    path = folder.private / "progress.jsonl"
    found = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        found[int(line["step"])] = line
    return dict(sorted(found.items()))
