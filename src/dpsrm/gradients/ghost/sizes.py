"""How many examples are run at a time, by what one of them records and writes out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from dpsrm.gradients.ghost.look import Look
from dpsrm.gradients.objective import Objective

_log = logging.getLogger(__name__)
_CACHED, _MOST, _FEW, _ON_GPU = 2**22, 2**25, 16, 2**27
"""Numbers recorded at once per point: about 16 MB of float32, so that they stay in the cache; up to 128 MB only to keep
pieces of a few examples together, or if the parameters are as many, because these are read, and the sum is gone
through, once per piece; 512 MB on a GPU."""
_WRITTEN = 2**25
"""Numbers of written-out gradients at once per point: 128 MB of float32."""


def recorded_at_once(objective: Objective) -> int:
    """How many numbers of all examples together should be recorded at one point."""
    on_host = next(objective.module.parameters()).device.type == "cpu"
    return max(_CACHED, min(_MOST, objective.layout.size)) if on_host else _ON_GPU


def most_examples(seen: Look, cached: int) -> int:
    """How many examples at most, by the numbers that each records (of at most `cached`) and writes out per point."""
    numbers, rows = max(1, seen.numbers), max(1, seen.rows)
    return max(1, min(max(cached // numbers, min(_FEW, _MOST // numbers)), _WRITTEN // rows))


def even_pieces(seen: Look, examples: int, cached: int) -> int:
    """How many examples at once, if pieces are to have the same size."""
    return math.ceil(examples / max(1, round(examples / most_examples(seen, cached))))


def say_pieces(seen: Look, cached: int, notice: Callable[[str], None]) -> None:
    """Say how many examples are run at a time: in the log, and as a notice where memory leaves few."""
    most = most_examples(seen, cached)
    words = f"up to {most} examples at a time: each holds {seen.numbers + seen.rows} numbers"
    if most < _FEW:
        notice(f"{words}; for more memory and perhaps more speed set performance.max_physical_batch")
    else:
        _log.info(words)
