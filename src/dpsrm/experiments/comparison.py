"""The paper's table against ours: three columns of honesty, what agrees, and who is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsrm.experiments.paper import FAMILY, PAPER, PaperRow
from dpsrm.experiments.tables import TableRow


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One method at one ε.

    (a) the paper's number; (b) its settings under its own noise formula, whose real ε is `papers_noise.epsilon_proved`;
    (c) ours under the tight accountant, without replacement as in the paper, and Poisson beside it; one of them at
    least. The verdict is on the former if there is one.
    """

    method: str
    epsilon: float | None
    paper: PaperRow
    papers_noise: TableRow | None
    wor: TableRow | None
    poisson: TableRow | None

    @property
    def verdict(self) -> str:
        """Whether ours agrees with the paper's number, given both confidence intervals."""
        ours = self.wor or self.poisson
        if ours is None:
            raise AssertionError(self.method)
        difference = ours.value - self.paper.value
        if abs(difference) <= ours.ci[ours.criterion] + self.paper.objective_spread:
            return "agrees"
        return f"{abs(difference):.4f} {'better' if difference < 0 else 'worse'}"


def compare(rows: Sequence[TableRow], problem: str) -> list[Comparison]:
    """Every row of the paper's table that we have for one model; its own method as it was run and as we run it best."""
    found = []
    for (method, epsilon), paper in PAPER.get(problem, {}).items():
        names = [method]
        if method == FAMILY:
            best = _best(rows, epsilon, "wor", family=True) or _best(rows, epsilon, "poisson", family=True)
            names = list(dict.fromkeys([f"{FAMILY}, paper's settings", *([best.method] if best else [])]))
        for name in names:
            wor = _find(rows, name, epsilon, "wor")
            poisson = _find(rows, name, epsilon, "poisson")
            if wor is not None or poisson is not None:
                other = _find(rows, f"{name}, paper's noise", epsilon, "wor")
                found.append(
                    Comparison(method=name, epsilon=epsilon, paper=paper, papers_noise=other, wor=wor, poisson=poisson)
                )
    return found


def leaders(rows: Sequence[TableRow]) -> list[str]:
    """For every ε and sampling, a sentence on who is best and how far the DP-SRM family is from it."""
    sentences = []
    for epsilon in sorted({row.epsilon for row in rows if row.epsilon is not None}):
        for sampling, words in (("wor", "without replacement"), ("poisson", "Poisson")):
            best, own = (_best(rows, epsilon, sampling, family=only) for only in (False, True))
            if best is None or own is None:
                continue
            text = f"ε = {epsilon:g}, {words}: {best.method} is best, {best.interval}"
            if best is own:
                second = _best([row for row in rows if not row.method.startswith(FAMILY)], epsilon, sampling)
                text += f"; the best rival is {second.method}, {second.interval}" if second else ""
            else:
                text += f"; the best of the DP-SRM family is {own.method}, {own.interval}"
            sentences.append(text + ".")
    return sentences


def _best(rows: Sequence[TableRow], epsilon: float | None, sampling: str, *, family: bool = False) -> TableRow | None:
    """The row with the lowest criterion; full-batch methods compete under either sampling."""
    full = ("DP-GD", "DP-AGD")
    fitting = [
        row
        for row in rows
        if row.epsilon == epsilon
        and (row.sampling == sampling or row.method in full)
        and not row.method.endswith("paper's noise")
        and (row.method.startswith(FAMILY) or not family)
    ]
    return min(fitting, key=lambda row: row.value, default=None)


def _find(rows: Sequence[TableRow], method: str, epsilon: float | None, sampling: str) -> TableRow | None:
    """The row of a method, if it was run."""
    matching = (r for r in rows if (r.method, r.epsilon, r.sampling) == (method, epsilon, sampling))
    return next(matching, None)
