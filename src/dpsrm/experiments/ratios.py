"""How soon a method is as good as DP-SGD is in the end: the paper's "0.3 × iterations, 0.4 × time", measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

RIVAL = "DP-SGD"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A mean over the trials that came as far, half the width of its 95 % interval, and how many came."""

    mean: float
    half: float
    reached: int
    trials: int

    def __str__(self) -> str:
        """For a table: the ratio, or how many never came as far.

        >>> str(Ratio(mean=0.5, half=0.1, reached=4, trials=5)), str(Ratio(mean=0.5, half=0.1, reached=5, trials=5))
        ('0.50 ± 0.10 (4 of 5)', '0.50 ± 0.10')
        """
        if self.reached == 0:
            return "not reached"
        text = f"{self.mean:.2f} ± {self.half:.2f}" if self.reached > 1 else f"{self.mean:.2f}"
        return text if self.reached == self.trials else f"{text} ({self.reached} of {self.trials})"


def ratio(trials: Sequence[dict[str, Any]], rival: Sequence[dict[str, Any]], cost: str) -> Ratio | None:
    """`cost` (steps or seconds) until the rival's mean final error is reached, ÷ the rival's cost of a whole run.

    A trial reaches it where its curve, drawn straight from point to point, first does. None without curves.
    """
    if not all(trial.get("curve") and cost in trial for trial in (*trials, *rival)):
        return None
    level = float(np.mean([trial["curve"][-1][1] for trial in rival]))
    whole = float(np.mean([trial[cost] for trial in rival]))
    shares = [_first(trial["curve"], level) for trial in trials]
    costs = [share * trial[cost] / whole for share, trial in zip(shares, trials, strict=True) if share is not None]
    n = len(costs)
    half = stats.t.ppf(0.975, n - 1) * np.std(costs, ddof=1) / np.sqrt(n) if n > 1 else float("nan")
    return Ratio(mean=float(np.mean(costs)) if n else float("nan"), half=float(half), reached=n, trials=len(trials))


def _first(curve: Sequence[Sequence[float]], level: float) -> float | None:
    """The share of the run at which the error first is `level`, or None.

    >>> _first([[0.5, 0.4], [1.0, 0.2]], 0.3)
    0.75
    """
    before = None
    for share, error, *_ in curve:
        if error is not None and error <= level:
            if before is None or before[1] == error:
                return share
            return before[0] + (share - before[0]) * (before[1] - level) / (before[1] - error)
        before = None if error is None else (share, error)
    return None
