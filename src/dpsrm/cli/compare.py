"""`dpsrm compare`: several runs side by side, what they cost and what they are worth."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.measure import Measurement
from rich.table import Table

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.show import Json, err, out, plain_text, print_json, save_figure
from dpsrm.core.errors import need, need_extra
from dpsrm.core.events import GaussianRelease
from dpsrm.core.files import read_toml, write_atomically
from dpsrm.report.compared import comparison_page
from dpsrm.report.facts import METRICS
from dpsrm.runs.folder import RunFolder, need_outside
from dpsrm.runs.verify import Verification, verify

_LESS_IS_BETTER = ("log_loss", "error", "rmse", "mae")
_SHOWN = ("method", "steps", "batch", "learning_rate")
_FACTS = ("delta", "model", *_SHOWN)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    plot: Annotated[Path | None, typer.Option(help="Draw the first measure against ε into this file.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the table as a page, for yourself, to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: ε, method, schedule, and what was measured on test records (in private/: for your eyes only).

    Example: dpsrm compare runs/a runs/b --plot compare.png
    """
    for place in filter(None, (plot, page)):
        need_outside(place)
    rows = [_row(run) for run in runs]
    measures = [name for name in METRICS if any(row["test"].get(name) is not None for row in rows)]
    if plot is not None:
        need(bool(measures), "a plot needs runs that were tested", remedy="train with --test, and keep private/")
        _draw(rows, measures[0], plot)
    if page is not None:
        write_atomically(page, comparison_page(rows, measures).encode(), mode=0o600)
    if as_json:
        print_json({"runs": rows, "best": _best(rows, measures)})
        return
    out.print(_table(rows, measures))
    out.print(_in_all(rows), highlight=False)
    if len(rows) > 1:
        err.print(
            "Each ε is that of one run. If they are on the same records, all of them together cost more, and choosing "
            "the best one is a choice by looking at the data: see dpsrm budget, and dpsrm plan --tries.",
            highlight=False,
            soft_wrap=True,
        )


def _row(run: Path) -> dict[str, Any]:
    """One run's facts, after checking it."""
    found, folder = verify(run), RunFolder(run)
    config = read_toml(folder.config) if folder.config.exists() else {}
    training, method = config.get("training", {}), config.get("method", {})
    guarantee, metrics = found.guarantee, _metrics(folder)
    return {
        "run": str(run),
        "verifies": found.ok,
        "unfinished": found.facts is not None and found.facts.closing is None,
        "problems": list(found.problems),
        "epsilon": math.inf if guarantee is None else guarantee.epsilon,
        "delta": None if guarantee is None else guarantee.delta,
        "model": config.get("model", {}).get("kind"),
        "method": method.get("name"),
        **_schedule(training, found),
        "test": metrics.get("test", {}),
        "half_width": metrics.get("test_half_width", {}),
    }


def _schedule(training: dict[str, Any], found: Verification) -> dict[str, Any]:
    """Steps, batch and learning rate; what the config leaves open as training made it of n, which the ledger says."""
    told = {name: training.get(name) for name in _SHOWN[1:]}
    charges = () if found.facts is None else found.facts.spending.charges
    drawn = [charge.event.sampling for charge in charges if isinstance(charge.event, GaussianRelease)]
    if not found.ok or not drawn or None not in (told["steps"], told["batch"]):
        return told
    from dpsrm.training.config import build
    from dpsrm.training.settings import Training

    made = build(Training, {**training, "batch": drawn[-1].batch}, "training").schedule(drawn[-1].population)
    return {**told, "steps": made.steps, "batch": made.batch}


def _metrics(folder: RunFolder) -> dict[str, Any]:
    """What was measured on test records, if anything."""
    path = folder.private / "metrics.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _best(rows: Sequence[dict[str, Any]], measures: Sequence[str]) -> dict[str, str]:
    """The run that is best by each measure."""
    best = {}
    for name in measures:
        known = [row for row in rows if row["test"].get(name) is not None]
        choose = min if name in _LESS_IS_BETTER else max
        best[name] = choose(known, key=lambda row: row["test"][name])["run"]
    return best


def _table(rows: Sequence[dict[str, Any]], measures: Sequence[str]) -> Table:
    """A line per run, or a column where lines are too long; the best of each measure is bold."""
    best, differing, together = _best(rows, measures), _differing(rows), _together(rows)
    lines = [["run", "ε", *(name.replace("_", " ") for name in differing), *(METRICS[name] for name in measures)]]
    for row in rows:
        told = "no guarantee" if math.isinf(row["epsilon"]) else rounded_up(row["epsilon"], 4)
        cells = [
            plain_text(Path(row["run"]).name if together else row["run"]),
            told if row["verifies"] else f"{told} [red]{'unfinished' if row['unfinished'] else 'does not verify'}[/]",
        ]
        cells += ["" if row[name] is None else plain_text(row[name]) for name in differing]
        for name in measures:
            value = row["test"].get(name)
            text = "" if value is None else f"{value:.4g}"
            cells.append(f"[bold]{text}[/]" if row["run"] == best[name] else text)
        lines.append(cells)
    table = _grid(lines) if _fits(_grid(lines)) else _grid(list(zip(*lines, strict=True)))
    table.title = "the measures are exact: do not publish them" if measures else None
    return table


def _differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The facts that are not the same in all runs."""
    return [name for name in _FACTS if len({str(row[name]) for row in rows}) > 1]


def _together(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether several runs lie in one folder, so that their names are enough."""
    return len(rows) > 1 and len({Path(row["run"]).parent for row in rows}) == 1


def _in_all(rows: Sequence[dict[str, Any]]) -> str:
    """What is the same in all runs."""
    alike = [name for name in _FACTS if name not in _differing(rows) and rows[0][name] is not None]
    same = [f"{name.replace('_', ' ')} {plain_text(rows[0][name])}" for name in alike]
    same += [f"folder {plain_text(Path(rows[0]['run']).parent)}"] if _together(rows) else []
    return f"in all runs: {', '.join(same)}" if same else ""


def _grid(lines: Sequence[Sequence[str]]) -> Table:
    """Lines of cells, the first of them the heads; numbers are never cut."""
    table = Table()
    for place, head in enumerate(lines[0]):
        table.add_column(head, justify="right" if place else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _fits(table: Table) -> bool:
    """Whether the terminal has room for every cell in one line."""
    return Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width


def _draw(rows: Sequence[dict[str, Any]], measure: str, path: Path) -> None:
    """One measure against ε; runs without a guarantee are horizontal lines."""
    need_extra("matplotlib", extra="cli")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in (row for row in rows if row["test"].get(measure) is not None):
        label, value = Path(row["run"]).name, row["test"][measure]
        if math.isinf(row["epsilon"]):
            axes.axhline(value, linestyle=":", color="grey", label=f"{label} (no guarantee)")
        else:
            spread = row["half_width"].get(measure) or 0.0
            axes.errorbar(
                [row["epsilon"]], [value], yerr=[spread], fmt="o", capsize=3, label=f"{label}: {row['method']}"
            )
    better = "less" if measure in _LESS_IS_BETTER else "more"
    axes.set(xlabel="ε of the run", ylabel=f"{METRICS[measure]} of the test records ({better} is better)")
    axes.set_title("for your eyes only; bars: 95 % confidence", fontsize=10)
    figure.legend(loc="outside right upper")
    axes.grid(alpha=0.3)
    save_figure(figure, path)
