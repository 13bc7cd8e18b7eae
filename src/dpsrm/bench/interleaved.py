"""Time several things so that a slow minute of the machine hits them all: in each round everything runs once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dpsrm.core.tracking import Track, silent

_MOST_ROUNDS_OF_SLOW = 7

TRACK: ContextVar[Track] = ContextVar("track", default=silent)
"""How the rounds are shown; the command line sets it."""


@contextmanager
def tracked(track: Track) -> Iterator[None]:
    """A block in which `track` shows the rounds, e.g. under a bar with the time left."""
    before = TRACK.set(track)
    try:
        yield
    finally:
        TRACK.reset(before)


def interleaved(
    steps: Mapping[str, Callable[[], Any]], rounds: int, *, slow: Collection[str] = ()
) -> dict[str, list[float]]:
    """Processor seconds of every step in every round; those named `slow` only in the first seven rounds."""
    seen: dict[str, list[float]] = {name: [] for name in steps}
    for number in TRACK.get()(range(rounds), rounds, "measuring"):
        for name, step in steps.items():
            if number >= _MOST_ROUNDS_OF_SLOW and name in slow:
                continue
            start = time.process_time()
            quiet(step)
            seen[name].append(time.process_time() - start)
    return seen


def quiet(step: Callable[[], Any]) -> None:
    """Run once without warnings: torch.func warns about its own speed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step()
