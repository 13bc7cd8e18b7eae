"""`dpsrm bench`, how good: the scores of models beside others', and the power of audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsrm.bench.interleaved import tracked
from dpsrm.cli.show import DataDir, Json, err, out, print_json, track
from dpsrm.core.errors import need


def units(
    panels: Annotated[str, typer.Option(help="Panels, e.g. wagepan,made-up; by default all.")] = "",
    rows: Annotated[
        Path, typer.Option("--out", help="Write every run here, as JSON lines; goes on where it stopped.")
    ] = Path("units.jsonl"),
    cost: Annotated[bool, typer.Option(help="Instead: what a step over persons costs, against records.")] = False,
    as_json: Json = False,
) -> None:
    """Protecting a person with all their rows, against group privacy and one row of each, on panels.

    Example: dpsrm bench units --out results/units.jsonl
    """
    from dpsrm.bench.panels import PANELS
    from dpsrm.bench.unit_cost import run as run_cost
    from dpsrm.bench.units import run, summary

    names = [name.strip() for name in panels.split(",") if name.strip()] or list(PANELS)
    need(set(names) <= set(PANELS), f"panels are {', '.join(PANELS)}", got=names)
    with err.status("measuring"):
        found = run_cost() if cost else summary(run(names, rows))
    show_found({"rows": found}, as_json=as_json)


def defaults(
    data_dir: DataDir = None,
    tables: Annotated[str, typer.Option(help="Tables, e.g. rand,digits; by default all.")] = "",
    seeds: Annotated[int, typer.Option(help="Runs per choice.")] = 2,
    rows: Annotated[Path, typer.Option("--out", help="Write every run here, as JSON lines.")] = Path("defaults.jsonl"),
    plot: Annotated[Path | None, typer.Option(help="Draw it into this file.")] = None,
    as_json: Json = False,
) -> None:
    """What not tuning costs: the defaults against those of before and the best of a grid, on public tables.

    Example: dpsrm bench defaults --data-dir data --out results/defaults.jsonl --plot docs/images/defaults.svg
    """
    from dpsrm.bench.default_tables import TABLES
    from dpsrm.bench.defaults import draw, run, summary
    from dpsrm.data.public import data_folder

    names = [name.strip() for name in tables.split(",")] if tables else list(TABLES)
    unknown = [name for name in names if name not in TABLES]
    need(not unknown, f"tables must be among {', '.join(TABLES)}", unknown=unknown)
    need(seeds >= 1, "seeds must be 1 or more", seeds=seeds)
    with tracked(track):
        found = run(names, data_folder(data_dir), rows, seeds=seeds)
    if plot is not None:
        draw(found, plot)
    show_found({"tables": summary(found)}, as_json=as_json)


def networks(
    data_dir: DataDir = None,
    rows: Annotated[Path, typer.Option("--out", help="Results, one JSON line each; gone on with.")] = Path(
        "own-networks.jsonl"
    ),
    as_json: Json = False,
) -> None:
    """Users' networks untuned: the rule against the settings of before and a small sweep, on public images.

    Example: dpsrm bench networks --data-dir data --out results/own-networks.jsonl
    """
    from dpsrm.bench.networks import NETWORK_PROBLEMS, run, summary
    from dpsrm.data.public import data_folder

    with err.status("measuring"):
        found = run(list(NETWORK_PROBLEMS), data_folder(data_dir), rows)
    show_found({"problems": summary(found)}, as_json=as_json)


def tables(
    data_dir: DataDir = None,
    names: Annotated[str, typer.Option("--tables", help="Tables, e.g. digits,price; by default all.")] = "",
    rows: Annotated[Path, typer.Option("--out", help="Results, one JSON line each; gone on with.")] = Path(
        "tables.jsonl"
    ),
    python: Annotated[Path | None, typer.Option(help="A Python that has diffprivlib; else it is left out.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the page, and its plot beside it, from the results.")] = None,
    measure: Annotated[bool, typer.Option(help="Run what is missing; --no-measure only writes the page.")] = True,
) -> None:
    """Private models of public tables: ours untuned and tuned, not private, DP-EBM, Opacus, diffprivlib.

    Example: dpsrm bench tables --data-dir data --out results/tables.jsonl --page docs/tables.md
    """
    from dpsrm.bench.public_tables import PUBLIC_TABLES
    from dpsrm.bench.table_page import draw
    from dpsrm.bench.table_page import page as written
    from dpsrm.bench.tables import read_rows, run
    from dpsrm.data.public import data_folder

    chosen = [name.strip() for name in names.split(",")] if names else list(PUBLIC_TABLES)
    unknown = [name for name in chosen if name not in PUBLIC_TABLES]
    need(not unknown, f"tables must be among {', '.join(PUBLIC_TABLES)}", unknown=unknown)
    if measure:
        with err.status("measuring"):
            run(chosen, data_folder(data_dir), rows, python=python)
    found = read_rows(rows)
    if page is not None:
        page.write_text(written(found))
        (page.parent / "images").mkdir(exist_ok=True)
        draw(found, page.parent / "images" / "tables.svg")
    out.print(f"{len(found)} results in {rows}")


def sampling(
    data_dir: DataDir = None,
    seeds: Annotated[int, typer.Option(help="Runs per row.")] = 10,
    as_json: Json = False,
) -> None:
    """Poisson sampling against sampling without replacement: noise and test log-loss on the demo's data and a9a.

    Example: dpsrm bench sampling --data-dir data --json
    """
    from dpsrm.bench.sampling import run
    from dpsrm.data.public import data_folder, public_files

    need(seeds >= 1, "seeds must be 1 or more", seeds=seeds)
    with tracked(track):
        found = run(*public_files("a9a", data_folder(data_dir)), seeds=seeds)
    show_found(found, as_json=as_json)


def audit(
    data_dir: Annotated[Path, typer.Option(help="Folder of the data; mnist/ must be in it.")] = Path("data"),
    rows: Annotated[Path, typer.Option("--out", help="Results, as JSON; what is there is not made again.")] = Path(
        "audit-results.json"
    ),
    runs: Annotated[int, typer.Option(help="Runs of the black box.", min=100)] = 1000,
    as_json: Json = False,
) -> None:
    """Power and false alarms of audits, and a black-box attack on a small CNN; minutes.

    Example: dpsrm bench audit --data-dir data --out docs/audit-results.json
    """
    from dpsrm.bench.audit import run

    with err.status("auditing"):
        found = run(data_dir, rows, runs=runs)
    show_found(found, as_json=as_json)


def show_found(found: dict[str, object], *, as_json: bool) -> None:
    """What was found, for machines or people."""
    if as_json:
        print_json(found)
    else:
        out.print(found)
