"""A budget that all fits of a search or a cross-validation share."""

from __future__ import annotations

from pathlib import Path

from dpsrm.accounting.budget import Budget
from dpsrm.accounting.budget_file import create_budget
from dpsrm.core.events import Adjacency


def new_budget(path: Path | str, *, epsilon: float, delta: float) -> str:
    """Make a budget file for `budget=` of the estimators; returns its path as text.

    Every fit with `budget=path` reserves all it may release in the file before it starts, and is refused when that
    would bring all fits together above (ε, δ). The fits may be on parts of the records, such as folds: each is charged
    as if it had seen all of them. A file, so that `clone`, `cross_val_score` and `GridSearchCV` share it, in several
    processes, too. Composed by Rényi divergences, which hold for fits chosen by looking at earlier ones.

    Guarantee: all models fitted with this budget, together, are (ε, δ)-DP, if the parts were chosen without looking at
    the records (by `KFold`, not by `StratifiedKFold`, where one label moves other records to other folds), and a part
    has a record once: a bootstrap sample (`BaggingClassifier`) has some several times, and each time counts. Scores on
    held-out private records are no models: they are exact, see `PrivateSearchCV`.
    """
    budget = Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE, parts=True)
    create_budget(Path(path), budget)
    return str(path)
