"""Results of `dpsrm bench scaling` as JSON lines, and as the tables of docs/scaling.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpsrm.bench.scaling import STAGES


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows as JSON lines, four digits each, added to what is there; an older row of the same size is replaced."""
    old = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {_key(row): row for row in [*old, *rows]}
    shown = [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()} for row in found.values()]
    path.write_text("".join(json.dumps(row) + "\n" for row in sorted(shown, key=_key)))


def _key(row: dict[str, Any]) -> tuple[str, int]:
    """What a row is of."""
    return row["what"], row.get("n", row.get("parameters", 0))


def page_tables(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The two tables of docs/scaling.md."""
    rows = list(rows)
    records = ["| n | step | of it draw | of it reading | once | memory |", "|---|---|---|---|---|---|"]
    for row in rows:
        if row["what"] == "records":
            once = f"{row['plan_s']:.2f} + {row['fingerprint_s']:.2f} s"
            cells = [f"{row[name]:.3g} ms" for name in ("step_ms", "draw_ms", "read_ms")]
            records.append(f"| {row['n']:.0e} | {' | '.join(cells)} | {once} | {row['memory_mb']:.0f} MB |")
    head = (
        "| parameters | plain | step | passes and clipping | noise | update | (step − noise) ÷ plain | noise ÷ step |"
    )
    sizes = [head, "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if row["what"] == "parameters":
            cells = [f"{row[f'{name}_ms']:.3g} ms" for name in ("plain", "step", *STAGES)]
            rest, share = (row["step_ms"] - row["noise_ms"]) / row["plain_ms"], row["noise_ms"] / row["step_ms"]
            sizes.append(f"| {row['parameters']:.0e} | {' | '.join(cells)} | {rest:.2f} | {100 * share:.0f} % |")
    return {"records": "\n".join(records), "parameters": "\n".join(sizes)}


def write_page(page: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Put the tables between the marks of a page."""
    text = page.read_text()
    for name, table in page_tables(rows).items():
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        text = f"{before}<!-- {name} -->\n{table}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    page.write_text(text)
