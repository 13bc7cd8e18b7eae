"""Several runs on one page, for the operator: what each costs and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.report.facts import METRICS
from dpsrm.report.page import page, section, table, tag


def comparison_page(rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> str:
    """A table of runs, as `dpsrm compare` finds them; exact measures, so not for publication."""
    shown = ("method", "model", "steps", "batch")
    head = ["run", "ε", "δ", "verifies", *shown, *(METRICS[name] for name in measures)]
    body = [
        [
            row["run"],
            "∞" if not math.isfinite(row["epsilon"]) else rounded_up(row["epsilon"], 4),
            "" if row["delta"] is None else rounded_up(row["delta"]),
            "yes" if row["verifies"] else tag("span", "no", class_="bad"),
            *("" if row[name] is None else row[name] for name in shown),
            *("" if row["test"].get(name) is None else f"{row['test'][name]:.4f}" for name in measures),
        ]
        for row in rows
    ]
    words = (
        "For the operator’s eyes only: the measures are exact. Each ε is that of one run; on the same records all "
        "of them together cost more, and choosing the best one is a choice by looking at the data."
    )
    return page(
        "Runs side by side, not for publication",
        tag("h1", "Runs side by side"),
        tag("p", words, class_="bad"),
        section("Runs", table("Runs, their guarantee and measures", head, body), name="runs"),
        note="Made by dpsrm compare.",
    )
