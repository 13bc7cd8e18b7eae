"""A problem's rows at a glance: for each model the deciding measure of every method, budget beside budget."""

from __future__ import annotations

from collections.abc import Sequence

from dpsrm.experiments.columns import markdown
from dpsrm.experiments.paper import PAPER
from dpsrm.experiments.problems import ABOUT
from dpsrm.experiments.recipes import REPLACE
from dpsrm.experiments.tables import TableRow

Under = tuple[str, str]
"""A sampling and an adjacency."""
_WORDS = {"wor": "WOR", "poisson": "Poisson"}


def overview(problem: str, rows: Sequence[TableRow]) -> str:
    """A page: one table for each model, and every row with all its columns at the end."""
    models = dict.fromkeys(row.model for row in rows)
    tables = [_table(problem, model, [row for row in rows if row.model == model]) for model in models]
    head = f"# {problem}: test error in %\n\nMeans of {_trials(rows)} trials ± 95 % confidence; δ = 1e-5, "
    told = "replace-one unless a column says otherwise. The best of each column is bold, intervals aside."
    every = f"## Every row\n\n{markdown(problem, rows)}"
    return "\n\n".join([head + told, *tables, every])


def _trials(rows: Sequence[TableRow]) -> str:
    """How many trials rows have: "5", or "5 to 10"."""
    counts = sorted({row.trials for row in rows})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _table(problem: str, model: str, rows: Sequence[TableRow]) -> str:
    """Methods down, budgets across, one group of columns for each sampling and adjacency that was run."""
    private = [row for row in rows if row.epsilon is not None]
    groups = sorted({_under(row) for row in private}, key=lambda under: (under[1] != REPLACE, under[0] != "poisson"))
    heads = [(under, epsilon) for under in groups for epsilon in ABOUT[problem].epsilons]
    found = {(row.method, _under(row), row.epsilon): row for row in private}
    best = {head: min((r.value for (_, *at), r in found.items() if tuple(at) == head), default=None) for head in heads}
    said = "adjacency" if "adjacency" in ABOUT[problem].also else "sampling"
    named = [f"{_named(under, said)}, ε = {epsilon:g}" for under, epsilon in heads]
    lines = [f"| | {' | '.join(named)} |", "|---" * (len(heads) + 1) + "|"]
    for method in dict.fromkeys(row.method for row in sorted(private, key=lambda row: _order(row.method))):
        shown = [_cell(found.get((method, *head)), best[head]) for head in heads]
        lines.append(f"| {method} | {' | '.join(shown)} |")
    lines += _papers(problem, heads)
    plain = [f"Without privacy: {_percent(row)} %." for row in rows if row.epsilon is None]
    return "\n\n".join([f"## {model}", "\n".join(lines), *plain])


def _papers(problem: str, heads: Sequence[tuple[Under, float]]) -> list[str]:
    """The paper's two methods, below the sampling that it used, or below Poisson where only that was run."""
    paper = PAPER.get(problem, {})
    below = next((under for under, _ in heads if under[0] == "wor"), heads[0][0] if heads else None)
    lines = []
    for method in ("DP-SGD", "DP-SRM") if paper else ():
        known = [paper.get((method, epsilon)) if under == below else None for under, epsilon in heads]
        shown = ["" if row is None or row.test_error is None else f"{100 * row.test_error:.4g}" for row in known]
        lines.append(f"| *the paper's {method} (WOR, ReLU)* | {' | '.join(shown)} |")
    return lines


def _under(row: TableRow) -> Under:
    """What a row ran under."""
    return row.sampling, row.adjacency


def _order(method: str) -> tuple[bool, str]:
    """Rivals first, then DP-SRM's forms."""
    return method.startswith("DP-SRM"), method


def _named(under: Under, said: str) -> str:
    """What a group of columns ran under: that of the two in which they differ."""
    return under[1] if said == "adjacency" else _WORDS[under[0]]


def _cell(row: TableRow | None, best: float | None) -> str:
    """A row's error, bold if it is the best; empty if it was not run."""
    if row is None:
        return ""
    return f"**{_percent(row)}**" if row.value == best else _percent(row)


def _percent(row: TableRow) -> str:
    """The error in per cent with its interval."""
    return f"{100 * row.value:.2f} ± {100 * row.ci[row.criterion]:.2f}"
