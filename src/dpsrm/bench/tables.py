"""Private models of public tables: ours untuned and tuned, without privacy, and rivals.

    dpsrm bench tables --data-dir DATA --out results/tables.jsonl --page docs/tables.md

Every result is one JSON line, written as it comes; a run that is started again does what is missing. Our grid has one
seed, networks (at ε = 1 and 3) two, everything else five; ε = 1 is done first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpsrm.bench.public_tables import PUBLIC_TABLES, PublicTable
from dpsrm.bench.table_ours import Found, grid, majority, network_choice, not_private, rule_choice, trial
from dpsrm.bench.table_rivals import Rival, rivals

EPSILONS = (1.0, 0.5, 3.0)
SEEDS, GRID_SEEDS, NETWORK_SEEDS = 5, 1, 2
NETWORK_EPSILONS = (1.0, 3.0)

Row = dict[str, Any]
Key = tuple[str, float, str, int]
Work = tuple[str, int, Callable[[], Found | None]]


def read_rows(path: Path) -> list[Row]:
    """The results so far; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def run(names: Sequence[str], folder: Path | None, out: Path, *, python: Path | None = None) -> list[Row]:
    """Do everything that `out` does not hold yet, and return all its rows.

    Args:
        python: a Python that has diffprivlib; without one it is left out.
    """
    rows = read_rows(out)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = {(row["table"], row["epsilon"], row["who"], row["seed"]) for row in rows}
    tables: dict[str, PublicTable] = {}
    with out.open("a") as file:
        for epsilon in EPSILONS:
            for name in names:
                table = tables[name] = tables[name] if name in tables else PUBLIC_TABLES[name](folder)
                for row in _missing(table, epsilon, done, rivals(python, SEEDS)):
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    rows.append(row)
    return rows


def _missing(table: PublicTable, epsilon: float, done: set[Key], others: dict[str, Rival]) -> Iterator[Row]:
    """The rows of one table at one ε that are not done; what a rival cannot do is a row without a loss."""
    facts = {"table": table.name, "n": table.n, "classes": table.classes, "epsilon": epsilon}
    for who, seed, work in _work(table, epsilon, others):
        if (table.name, epsilon, who, seed) not in done:
            yield {**facts, "who": who, "seed": seed, **(work() or {"loss": None})}


def _work(table: PublicTable, epsilon: float, others: dict[str, Rival]) -> Iterator[Work]:
    """(who, seed, what to do), the quick ones first."""
    yield "majority", 0, lambda: majority(table)
    yield "not private", 0, lambda: not_private(table)
    ours = rule_choice(table, epsilon)
    for seed in range(SEEDS):
        yield "rule", seed, lambda seed=seed: trial(table, ours, epsilon, seed=seed)  # type: ignore[misc]
        for who, rival in others.items():
            yield who, seed, lambda rival=rival, seed=seed: rival(table, epsilon, seed)  # type: ignore[misc]
    for seed in range(NETWORK_SEEDS if epsilon in NETWORK_EPSILONS else 0):
        yield "network", seed, lambda seed=seed: trial(table, network_choice(table), epsilon, seed=seed)  # type: ignore[misc]
    for choice in grid(table, epsilon):
        for seed in range(GRID_SEEDS):
            yield (
                f"grid {choice.label}",
                seed,
                lambda choice=choice, seed=seed: trial(table, choice, epsilon, seed=seed),  # type: ignore[misc]
            )
