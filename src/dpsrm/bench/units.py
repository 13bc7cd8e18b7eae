"""What protecting a person costs: all rows of each, against group privacy of a record-level run and one row of each.

    dpsrm bench units --out results/units.jsonl

All three promise the same: ε = 3 at δ = 1e-5 for a person with all their rows. Each is given the best of one grid of
clips and step sizes, by the mean log-loss on held-out persons over the first splits; then further splits are run with
that choice. All runs are seeded trials of logistic regression by DP-SGD.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpsrm.bench.panels import PANELS, PersonTable
from dpsrm.data import SparseRecords
from dpsrm.gradients import binary_loss
from dpsrm.methods import Sgd
from dpsrm.training import Model, Performance, Privacy, Settings, Training, classification_metrics, run_trials
from dpsrm.training.defaults import default_training

EPSILON, DELTA = 3.0, 1e-5
CLIPS = (0.5, 1.0, 2.0, 4.0)
RATES = (0.125, 0.25, 0.5, 1.0)
"""Times the default learning rate ÷ the clip."""
TUNED, SPLITS = 2, 5
"""Splits on which the grid is compared, and splits that are reported."""
ROWS = {"rwm5yr": 5, "wagepan": 8, "made-up": 8}
"""k: how many rows of a person count."""

Row = dict[str, Any]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Arm:
    """One way to keep the promise: rows, whose they are (None: each its own), and the record's or person's ε and δ."""

    name: str
    rows: SparseRecords
    unit: Array | None
    epsilon: float
    delta: float
    n: int


def group_promise(rows: int, *, epsilon: float = EPSILON, delta: float = DELTA) -> tuple[float, float]:
    """What a record must be promised so that `rows` records together have (ε, δ): group privacy (Vadhan 2017, L. 2.2).

    >>> group_promise(1)
    (3.0, 1e-05)
    """
    each = epsilon / rows
    return each, delta * math.expm1(each) / math.expm1(epsilon)


def run(names: Sequence[str], out: Path) -> list[Row]:
    """Run the study; rows are written to `out` as they come, and those that are there are not run again."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    with out.open("a") as file:
        for name in names:
            for row in _study(name, PANELS[name](), [row for row in rows if row["panel"] == name]):
                file.write(json.dumps(row) + "\n")
                file.flush()
                rows.append(row)
    return rows


def summary(rows: Sequence[Row]) -> list[Row]:
    """Mean and standard deviation of what each way is worth at its best, by panel; lower log-loss is better."""
    found = []
    for panel, arm in dict.fromkeys((row["panel"], row["arm"]) for row in rows):
        mine = [row for row in rows if (row["panel"], row["arm"]) == (panel, arm)]
        last = [row for row in mine if (row["clip"], row["rate"]) == _best(mine)]
        losses, aucs = [row["log_loss"] for row in last], [row["auc"] for row in last]
        facts = {name: last[0][name] for name in ("n", "clip", "rate", "noise_multiplier")}
        spread = statistics.stdev(losses) if len(losses) > 1 else math.nan
        figures = {"log_loss": statistics.mean(losses), "sd": spread, "auc": statistics.mean(aucs)}
        found.append({"panel": panel, "arm": arm, "splits": len(last), **facts, **figures})
    return found


def table(rows: Sequence[Row]) -> str:
    """The summary as a table of docs/whose-privacy.md."""
    lines = ["| panel | persons, k | way | log-loss | AUC |", "|---|---|---|---|---|"]
    for row in summary(rows):
        k = next(each["k"] for each in rows if each["panel"] == row["panel"])
        persons = next(each["n"] for each in rows if (each["panel"], each["arm"]) == (row["panel"], "unit"))
        figures = f"{row['log_loss']:.4f} ± {row['sd']:.4f} | {row['auc']:.3f}"
        lines.append(f"| {row['panel']} | {persons}, {k} | {row['arm']} | {figures} |")
    return "\n".join(lines)


def _best(rows: Sequence[Row]) -> tuple[float, float]:
    """The clip and rate with the lowest mean log-loss on the splits that all of the grid were run on."""
    first = [row for row in rows if row["split"] < TUNED]
    choices = {(row["clip"], row["rate"]) for row in first}
    return min(choices, key=lambda c: statistics.mean(r["log_loss"] for r in first if (r["clip"], r["rate"]) == c))


def _study(name: str, panel: PersonTable, known: Sequence[Row]) -> Iterator[Row]:
    """All runs on one panel that are not known yet."""
    seen = {(row["arm"], row["clip"], row["rate"], row["split"]): row for row in known}
    mine = list(known)
    for split in range(SPLITS):
        arms, test = _split(panel, ROWS[name], split)
        for arm in arms:
            tuned = list(itertools.product(CLIPS, RATES))
            if split >= TUNED:
                tuned = [_best([row for row in mine if row["arm"] == arm.name])]
            for clip, rate in tuned:
                if (arm.name, clip, rate, split) not in seen:
                    row = {"panel": name, **_trial(arm, test, clip, rate, k=ROWS[name], split=split)}
                    mine.append(row)
                    yield row


def _split(panel: PersonTable, k: int, split: int) -> tuple[list[Arm], SparseRecords]:
    """The three ways on four fifths of the persons, and the rows of the others."""
    rng = np.random.default_rng(split)
    persons, who = np.unique(panel.ids, return_inverse=True)
    held_out = (rng.random(len(persons)) < 0.2)[who]
    order = rng.permutation(np.flatnonzero(~held_out))
    rank = _ranks(who[order])
    kept, one = order[rank < k], order[rank < 1]
    epsilon, delta = group_promise(int(rank[rank < k].max()) + 1)
    arms = [
        Arm("unit", _rows(panel, order), panel.ids[order], EPSILON, DELTA, len(one)),
        Arm("group privacy", _rows(panel, kept), None, epsilon, delta, len(kept)),
        Arm("one row", _rows(panel, one), None, EPSILON, DELTA, len(one)),
    ]
    return arms, _rows(panel, np.flatnonzero(held_out))


def _ranks(who: Array) -> Array:
    """How many rows of the same person come before each row."""
    order = np.argsort(who, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(who[order]) > 0])
    ranks = np.empty(len(who), dtype=np.int64)
    ranks[order] = np.arange(len(who)) - np.repeat(starts, np.diff(np.r_[starts, len(who)]))
    return ranks


def _rows(panel: PersonTable, at: Array) -> SparseRecords:
    """Some rows of a panel."""
    return SparseRecords(panel.inputs[at], torch.from_numpy(panel.targets[at]))


def _trial(arm: Arm, test: SparseRecords, clip: float, rate: float, *, k: int, split: int) -> Row:
    """One seeded run and what it is worth on the held-out persons' rows."""
    _, usual = default_training(n=arm.n, epsilon=arm.epsilon, delta=arm.delta, classes=2)
    eta = usual.learning_rate * rate / clip
    promise = Privacy(epsilon=arm.epsilon, delta=arm.delta, rows_per_unit=None if arm.unit is None else k)
    settings = Settings(
        privacy=promise,
        method=Sgd(max_grad_norm=clip),
        training=Training(batch=usual.batch, steps=usual.steps, learning_rate=eta, output="tail"),
        performance=Performance(threads=1),
        seed=split,
    )
    module = Model().build(features=arm.rows.matrix.shape[1], classes=2, stream=np.random.default_rng(0))
    (result,) = run_trials(module, binary_loss, arm.rows, [settings], unit=arm.unit)
    theta_P = result.theta.double().numpy()
    logits = torch.from_numpy(test.matrix @ theta_P[:-1] + theta_P[-1])
    found = classification_metrics(logits, test.targets)
    return {
        "arm": arm.name,
        "clip": clip,
        "rate": rate,
        "split": split,
        "n": result.plan.n,
        "epsilon": arm.epsilon,
        "delta": arm.delta,
        "k": k,
        "steps": result.plan.schedule.steps,
        "batch": result.plan.schedule.batch,
        "noise_multiplier": round(result.plan.noise_multiplier, 4),
        "log_loss": round(found["log_loss"], 5),
        "auc": round(found["auc"], 5),
    }
