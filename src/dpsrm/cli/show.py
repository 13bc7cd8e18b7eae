"""How the command line shows things: progress on stderr, results on stdout, JSON for machines, and --quiet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import dpsrm
from dpsrm.core.errors import InputError, need_extra, visible
from dpsrm.report.facts import METRICS

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data (else $DPSRM_DATA, else ./data).")]
"""Options that many commands have."""


def track(jobs: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """Pass jobs on under a bar with the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err) as bar:
        yield from bar.track(jobs, total=total, description=title)


def plain_text(text: object) -> str:
    """Words of a run's or the user's, as markup that shows them as they are; see `visible`.

    >>> print(plain_text("[red]a\\nb\\x1b[2K"))
    \\[red]a\\nb\\x1b[2K
    """
    return escape(visible(text))


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout; numbers JSON has no word for become strings ("inf") or null (NaN)."""
    typer.echo(json.dumps(_json_ready(value), ensure_ascii=False))


def _json_ready(value: Any) -> Any:
    """`value` with infinities and NaN replaced, at every depth."""
    if isinstance(value, Mapping):
        return {name: _json_ready(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a PNG or SVG file."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write the plot {path}: {error}; give a .png or .svg path") from error


@contextmanager
def going_on(words: str = "") -> Iterator[None]:
    """Say after Ctrl-C how to go on: in `words`, and in what the interrupted part noted.

    Ctrl-C inside compiled code arrives as another error whose cause is the interrupt; it is one all the same.
    """
    try:
        yield
    except (KeyboardInterrupt, Exception) as stop:
        chain = list(_chain(stop))
        if not any(isinstance(each, KeyboardInterrupt) for each in chain):
            raise
        notes = [note for each in chain for note in getattr(each, "__notes__", [])]
        told = f"interrupted: {words}" if words else "interrupted"
        err.print("\n".join(map(visible, [told, *notes])), highlight=False, soft_wrap=True, markup=False)
        raise KeyboardInterrupt from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def next_step(words: str, command: str) -> None:
    """What to do now, as a line on stderr that can be copied; --quiet leaves it out."""
    err.print(f"Next: {visible(words)}\n  {visible(command)}", highlight=False, soft_wrap=True, markup=False)


def show_head(head: str) -> None:
    """A run's last chain head, in one line: what to keep elsewhere for `dpsrm verify --expect`."""
    out.print(f"Chain head, to be written down elsewhere: {plain_text(head)}", highlight=False, soft_wrap=True)


def metrics_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Metrics as rows, one column per model."""
    table = Table(title=title, min_width=len(title) + 4)  # a title in one line
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for key, label in METRICS.items():
        if all(key in values for values in columns.values()):
            table.add_row(label, *(f"{values[key]:.4f}" for values in columns.values()))
    return table


def _tell_version(wanted: bool) -> None:
    """Print the version and stop, if that is wanted."""
    if wanted:
        typer.echo(f"dpsrm {dpsrm.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Results and warnings only: no bars or next steps.")] = False,
) -> None:
    """Train models with differential privacy.

    Example: dpsrm demo, then dpsrm report runs/demo --open
    """
    err.quiet = quiet
