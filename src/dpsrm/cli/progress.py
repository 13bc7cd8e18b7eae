"""The live progress bar."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from dpsrm.cli.show import err
from dpsrm.training import Progress, Watcher


@contextmanager
def progress_bar(title: str, *, epsilon: float | None) -> Iterator[Watcher]:
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

        def watch(progress: Progress) -> None:
            spent = "∞" if math.isinf(progress.epsilon) else f"{progress.epsilon:.3f}"
            facts = f"loss {progress.private.loss:.4f}  ‖v‖ {progress.direction_norm:.3g}  ε {spent} of {allowed}"
            bar.update(task, completed=progress.step, total=progress.steps, facts=facts)

        yield watch
