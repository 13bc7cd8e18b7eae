"""`report.html`: the paper's tables against ours, with figures, in one file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpsrm.core.extras import need_extra
from dpsrm.experiments.columns import cells, columns
from dpsrm.experiments.comparison import compare, leaders
from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.tables import TableRow


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One model of one problem: its rows, and the figure of each ε as an SVG file."""

    problem: str
    rows: Sequence[TableRow]
    figures: Mapping[float, Path]
    model: str = ""

    @property
    def title(self) -> str:
        """The problem, and the model if it has several."""
        return f"{self.problem}, {self.model}" if self.model else self.problem


def write_report(chapters: Sequence[Chapter], path: Path) -> None:
    """Write the report; everything in it follows from the rows."""
    need_extra("jinja2", extra="cli")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dpsrm.experiments", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["interval"] = _interval
    template = environment.get_template("report.html")
    told = [
        {
            "title": chapter.title,
            "images": ABOUT[chapter.problem].images,
            "head": [column.head for column in columns(chapter.problem)],
            "leaders": leaders(chapter.rows),
            "comparisons": compare(chapter.rows, chapter.problem),
            "rows": [cells(row, columns(chapter.problem)) for row in chapter.rows],
            "figures": {epsilon: _embedded(figure) for epsilon, figure in chapter.figures.items()},
        }
        for chapter in chapters
    ]
    path.write_text(template.render(chapters=told), encoding="utf-8")


def _interval(row: TableRow | None) -> str:
    """What decides and its 95 % confidence, or nothing."""
    return "" if row is None else row.interval


def _embedded(figure: Path) -> str:
    """An SVG file as an address that holds it."""
    return "data:image/svg+xml;base64," + base64.b64encode(figure.read_bytes()).decode()
