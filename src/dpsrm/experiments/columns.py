"""A table's columns as text, for a terminal, Markdown and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.ratios import Ratio
from dpsrm.experiments.tables import TableRow


@dataclass(frozen=True)
class Column:
    """A column of a table; `brief` ones fit into a terminal."""

    head: str
    text: Callable[[TableRow], str]
    brief: bool = False


def columns(problem: str) -> tuple[Column, ...]:
    """The columns of a problem's table."""
    if not ABOUT[problem].images:
        return _LOGISTIC
    return _IMAGES if "adjacency" not in ABOUT[problem].also else _FEATURES


def _paper(row: TableRow, name: str, *, factor: float = 1.0) -> str:
    """A number of the paper's, or nothing."""
    value = None if row.paper is None else getattr(row.paper, name)
    return "" if value is None else f"{factor * value:.4g}"


def _text(found: Ratio | None) -> str:
    """A ratio, or nothing."""
    return "" if found is None else str(found)


_BUDGET = Column(
    "ε (proved)", lambda r: "∞" if r.epsilon is None else f"{r.epsilon:g} ({r.epsilon_proved:.3g})", brief=True
)
_LOGISTIC = (
    Column("method", lambda r: r.method, brief=True),
    _BUDGET,
    Column(
        "ε with tuning (δ = 0.0017)", lambda r: "" if r.epsilon_with_tuning is None else f"{r.epsilon_with_tuning:.3g}"
    ),
    Column("sampling", lambda r: r.sampling, brief=True),
    Column("test objective", lambda r: r.interval, brief=True),
    Column("paper", lambda r: _paper(r, "objective"), brief=True),
    Column("log-loss", lambda r: f"{r.test_log_loss:.4f}"),
    Column("0/1 error", lambda r: f"{100 * r.test_error:.2f} %"),
    Column("train objective", lambda r: f"{r.train_objective:.4f}"),
    Column("‖∇F‖", lambda r: f"{r.gradient_norm:.4f}", brief=True),
    Column("paper", lambda r: _paper(r, "gradient_norm")),
    Column("passes", lambda r: f"{r.passes:.1f}"),
    Column("paper", lambda r: _paper(r, "passes")),
    Column("gradients", lambda r: f"{r.gradients:.3g}"),
    Column("CPU s", lambda r: f"{r.seconds:.2f}", brief=True),
    Column("paper", lambda r: _paper(r, "seconds")),
)
_IMAGES = (
    Column("model", lambda r: r.model, brief=True),
    Column("method", lambda r: r.method, brief=True),
    _BUDGET,
    Column("ε with tuning", lambda r: "" if r.epsilon_with_tuning is None else f"{r.epsilon_with_tuning:.3g}"),
    Column("sampling", lambda r: r.sampling, brief=True),
    Column("trials", lambda r: str(r.trials), brief=True),
    Column("test error", lambda r: r.interval, brief=True),
    Column("paper %", lambda r: _paper(r, "test_error", factor=100), brief=True),
    Column("log-loss", lambda r: f"{r.test_log_loss:.4f}"),
    Column("noise multiplier", lambda r: f"{r.noise_multiplier:.3f}"),
    Column("passes", lambda r: f"{r.passes:.1f}"),
    Column("iterations", lambda r: "" if r.steps is None else f"{r.steps:.0f}"),
    Column("paper", lambda r: _paper(r, "steps")),
    Column("iterations to DP-SGD's error ÷ its", lambda r: _text(r.iterations_to_rival)),
    Column("time to it ÷ its", lambda r: _text(r.time_to_rival)),
    Column("gradients", lambda r: f"{r.gradients:.3g}"),
    Column("CPU s", lambda r: f"{r.seconds:.1f}", brief=True),
    Column("paper (GPU s)", lambda r: _paper(r, "seconds")),
)

_FEATURES = tuple(
    Column("adjacency", lambda r: r.adjacency, brief=True) if column.head == "sampling" else column
    for column in _IMAGES
    if "paper" not in column.head
)
"""The paper has no such rows; sampling is always Poisson."""


def cells(row: TableRow, shown: Sequence[Column]) -> tuple[str, ...]:
    """A row as text."""
    return tuple(column.text(row) for column in shown)


def markdown(problem: str, found: Sequence[TableRow]) -> str:
    """The rows as a Markdown table."""
    shown = columns(problem)
    lines = [f"| {' | '.join(column.head for column in shown)} |", "|" + "---|" * len(shown)]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row, shown))} |" for row in found)])
