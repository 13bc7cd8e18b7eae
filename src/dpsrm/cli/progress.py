"""The live progress bar."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from dpsrm.cli.show import err
from dpsrm.training import Callback, Progress

_EVERY = 0.5
"""Seconds between two looks: ε of what was released takes the accountant some milliseconds each time."""


@contextmanager
def progress_bar(title: str, *, epsilon: float | None) -> Iterator[Callback]:
    """A live bar with step, loss, ‖v‖ and ε spent of ε allowed; the loss is for the operator's eyes only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    allowed = "∞" if epsilon is None else f"{epsilon:g}"
    with Bar(*columns, console=err) as bar:
        task = bar.add_task(title, total=None, facts="")

        due = 0.0

        def show(progress: Progress) -> None:
            nonlocal due
            last = progress.step == progress.steps
            if not last and time.monotonic() < due:
                return
            spent = "∞" if epsilon is None else f"{progress.epsilon:.3f}"
            facts = f"loss {progress.private.loss:.4f}  ‖v‖ {progress.direction_norm:.3g}  ε {spent} of {allowed}"
            bar.update(task, completed=progress.step, total=progress.steps, facts=facts)
            due = time.monotonic() + _EVERY

        yield show
