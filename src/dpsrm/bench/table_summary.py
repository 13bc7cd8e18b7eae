"""What the rows of the benchmark of tables say: means, shares of the oracle's gain, the rule with a table left out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dpsrm.bench.table_ours import FACTORS, NUMBER_FACTORS

Row = dict[str, Any]
RIVALS = ("DP-EBM", "Opacus Adam", "diffprivlib logistic", "diffprivlib forest", "diffprivlib linear")
_FLOWS, _POWERS, _MOST = (0.25, 0.35, 0.5, 0.7, 1.0), (0.0, 0.25, 0.5, 0.75), 2.0
_CLIPS = (0.15, 0.4, 1.0)


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """One table at one ε: mean losses and errors by name, and seconds of the rule's runs."""

    table: str
    n: int
    classes: int
    epsilon: float
    losses: dict[str, float]
    errors: dict[str, float]
    seconds: float

    @property
    def oracle(self) -> float:
        """The best point of the grid by test loss, which nobody has in practice; or the rule, if that is better."""
        return min(loss for who, loss in self.losses.items() if who == "rule" or who.startswith("grid "))

    def share(self, loss: float) -> float:
        """How much of the oracle's gain over a model without features a loss keeps."""
        return (self.losses["majority"] - loss) / (self.losses["majority"] - self.oracle)

    def best_rival(self, measure: dict[str, float]) -> tuple[str, float]:
        """The rival with the least loss, or error."""
        found = {who: measure[who] for who in RIVALS if who in measure}
        who = min(found, key=lambda name: found[name])
        return who, found[who]

    def ahead(self) -> tuple[bool, bool]:
        """Whether the rule's loss is below every rival's; whether its error is."""
        losses, errors = self.losses["rule"], self.errors["rule"]
        return losses < self.best_rival(self.losses)[1], errors < self.best_rival(self.errors)[1]


def results(rows: Sequence[Row]) -> list[TableResult]:
    """A result for each table and ε that is complete: rule, majority and grid are there."""
    groups: dict[tuple[float, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["loss"] is not None:
            groups[row["epsilon"], row["table"]].append(row)
    found = [_result(group) for group in groups.values() if _complete(group)]
    return sorted(found, key=lambda one: (one.epsilon, one.classes == 0, one.classes, one.n))


def _complete(group: Sequence[Row]) -> bool:
    """Whether nothing of ours is missing, nor a rival that can do this table."""
    seen = {(row["who"], row["seed"]) for row in group}
    grid = sum(who.startswith("grid ") for who, _ in seen)
    needed = 13 if group[0]["classes"] else 11
    return {"majority", "rule", "not private"} <= {who for who, _ in seen} and grid == needed


def _result(group: Sequence[Row]) -> TableResult:
    """Means over seeds."""
    losses: dict[str, list[float]] = defaultdict(list)
    errors: dict[str, list[float]] = defaultdict(list)
    for row in group:
        losses[row["who"]].append(row["loss"])
        errors[row["who"]].append(row["error"])
    first = group[0]
    return TableResult(
        table=first["table"],
        n=first["n"],
        classes=first["classes"],
        epsilon=first["epsilon"],
        losses={who: statistics.fmean(values) for who, values in losses.items()},
        errors={who: statistics.fmean(values) for who, values in errors.items()},
        seconds=max(row["seconds"] for row in group if row["who"] == "rule"),
    )


Candidate = Callable[[TableResult], float]
"""From a table's grid to the loss that a rule would have had there."""


def _flow(flow: float, power: float) -> Candidate:
    """The rule η·T = flow·classes^power·n·μ, by interpolating the grid between its lengths."""

    def loss(one: TableResult) -> float:
        wanted = min(_MOST, flow * one.classes**power)
        known = [one.losses[f"grid sgd 8 1 x {factor:g}"] for factor in FACTORS]
        return float(np.interp(np.log(wanted), np.log(FACTORS), known))

    return loss


def _clip(clip: float, factor: float) -> Candidate:
    """The rule for numbers: a clip and a length."""
    return lambda one: one.losses[f"grid sgd 1 {clip:g} x {factor:g}"]


def candidates(*, numbers: bool) -> dict[str, Candidate]:
    """The rules that leaving one table out chooses from."""
    if numbers:
        return {f"C = {c:g}, flow {f:g}": _clip(c, f) for c, f in product(_CLIPS, NUMBER_FACTORS)}
    return {f"flow {a:g}·classes^{p:g}": _flow(a, p) for a, p in product(_FLOWS, _POWERS)}


def left_out(found: Sequence[TableResult]) -> dict[str, tuple[str, list[float]]]:
    """For each table: the rule chosen on all others of its kind (by mean share, all ε), and its shares on this one."""
    chosen = {}
    for table in dict.fromkeys(one.table for one in found):
        here = [one for one in found if one.table == table]
        numbers = here[0].classes == 0
        others = [one for one in found if one.table != table and (one.classes == 0) == numbers]
        rules = candidates(numbers=numbers)
        best = max(rules, key=lambda name: sum(one.share(rules[name](one)) for one in others))
        chosen[table] = best, [one.share(rules[best](one)) for one in here]
    return chosen
