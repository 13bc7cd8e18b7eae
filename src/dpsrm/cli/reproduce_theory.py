"""`dpsrm reproduce rates`, `accountants` and `does-it-help`: the paper's theory and promise, measured and computed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsrm.cli.show import out, print_json, track
from dpsrm.core.errors import need

if TYPE_CHECKING:
    from dpsrm.experiments.flow import FlowRow
    from dpsrm.experiments.lab import Lab
    from dpsrm.experiments.momentum import NoiseRow
    from dpsrm.experiments.sweep import SweepRow


def reproduce_rates(
    data: Path, results: Path, *, trials: int, workers: int, run: bool, docs: Path, as_json: bool
) -> None:
    """Run the trials that are missing; write the table of fitted exponents and the figure."""
    from dpsrm.experiments.lab import Lab
    from dpsrm.experiments.rate_figures import draw_rates, rates_table
    from dpsrm.experiments.rates import all_series, measured, missing_jobs
    from dpsrm.experiments.runner import run_jobs

    lab, series = Lab(data, results), all_series()
    if run:
        jobs = missing_jobs(lab, series, trials)
        for _ in track(run_jobs(lab, jobs, workers=workers), len(jobs), "rates"):
            pass
    found = (measured(lab, each) for each in series)
    slopes = [slope for slope in found if slope is not None]
    need(len(slopes) > 0, "there are no results yet", results=str(results), remedy="run without --from-results")
    draw_rates(slopes, docs / "images" / "rates")
    (docs / "rates-table.md").write_text(rates_table(slopes) + "\n", encoding="utf-8")
    if as_json:
        print_json({"slopes": [{**asdict(slope), "seen": slope.seen} for slope in slopes]})
        return
    for slope in slopes:
        one = slope.series
        told = f"{slope.exponent:.3f} ± {slope.half_width:.3f}"
        out.print(f"{one.case.title}: {one.algorithm}, {one.noise_kind}: exponent {told} {slope.seen}", highlight=False)
    out.print(f"Table and figure: {docs / 'rates-table.md'}, {docs / 'images' / 'rates.png'}")


def reproduce_accountants(results: Path, *, run: bool, docs: Path, as_json: bool) -> None:
    """Compute the rows that are missing; write the table of noise over the paper's settings and the figure."""
    from dpsrm.experiments.rate_figures import draw_remark
    from dpsrm.experiments.remark import keep, kept_rows, missing_settings, row, table

    path = results / "accountants.jsonl"
    missing = missing_settings(path) if run else []
    for setting in track(missing, len(missing), "accountants"):
        keep(path, row(setting))
    rows = kept_rows(path)
    need(len(rows) > 0, "there are no results yet", results=str(results), remedy="run without --from-results")
    draw_remark(rows, docs / "images" / "accountants")
    (docs / "accountants-table.md").write_text(table(rows) + "\n", encoding="utf-8")
    if as_json:
        print_json({"rows": rows})
        return
    out.print(f"Table and figure: {docs / 'accountants-table.md'}, {docs / 'images' / 'accountants.png'}")


def reproduce_help(data: Path, results: Path, *, workers: int, run: bool, docs: Path, as_json: bool) -> None:
    """Compute what is missing; draw where noise goes, few against many steps, all rates, and what the tables say."""
    from dpsrm.experiments.flow import draw_flow
    from dpsrm.experiments.lab import Lab
    from dpsrm.experiments.momentum import draw_gains, draw_noise, gains
    from dpsrm.experiments.problems import ABOUT
    from dpsrm.experiments.reproduction import Reproduction
    from dpsrm.experiments.sweep import draw_sweep

    figures = {name: docs / "images" / f"help-{name}" for name in ("noise", "flow", "sweep", "gains")}
    lab = Lab(data, results)
    draw_noise(noise := _noise(results / "does-it-help.jsonl", run=run), figures["noise"])
    draw_flow(flow := _flow(data, results / "flow.jsonl", run=run), figures["flow"])
    draw_sweep(sweep := _sweep(lab, workers=workers, run=run), figures["sweep"])
    works = {name: Reproduction(problem=name, lab=lab) for name in ABOUT if lab.knows(name)}
    tables = {name: work.rows(work.recipes()) for name, work in works.items()}
    draw_gains(tables, figures["gains"])
    told: dict[str, list[Any]] = {"noise": noise, "flow": flow, "sweep": sweep}
    if as_json:
        facts = {name: [asdict(row) for row in rows] for name, rows in told.items()}
        print_json({**facts, "gains": {name: gains(found) for name, found in tables.items()}})
        return
    for row in (row for rows in told.values() for row in rows):
        out.print(str(row), highlight=False)
    out.print(f"Figures: {', '.join(f'{stem}.png' for stem in figures.values())}")


def _noise(path: Path, *, run: bool) -> list[NoiseRow]:
    """The noise at each batch size; what is missing is computed, if that is wanted."""
    from dpsrm.experiments.momentum import BATCHES, noise_row, read_noise

    rows = read_noise(path)
    missing = [batch for batch in BATCHES if batch not in {row.batch for row in rows}] if run else []
    rows += [noise_row(batch) for batch in track(missing, len(missing), "noise")]
    need(len(rows) > 0, "there are no results yet", results=str(path.parent), remedy="run without --from-results")
    rows.sort(key=lambda row: row.batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    return rows


def _flow(data: Path, path: Path, *, run: bool) -> list[FlowRow]:
    """The rows of few steps against many; those that are missing are run, if that is wanted."""
    from dpsrm.experiments.flow import flow_problem, flow_row, keep_flow, missing_cells, read_flow

    missing = missing_cells(read_flow(path)) if run else []
    problem = flow_problem(data) if missing else None
    for cell in track(missing, len(missing), "flow in few and many steps"):
        assert problem is not None
        keep_flow(path, flow_row(problem, cell))
    return read_flow(path)


def _sweep(lab: Lab, *, workers: int, run: bool) -> list[SweepRow]:
    """The rows of one grid of rates for all methods; trials that are missing are run, if that is wanted."""
    from dpsrm.experiments.reproduction import Reproduction
    from dpsrm.experiments.sweep import PROBLEM, TRIALS, sweep_recipes, sweep_rows

    if run:
        work = Reproduction(problem=PROBLEM, lab=lab, workers=workers, track=track)
        work.hold_out(sweep_recipes(), range(TRIALS), "one grid of rates for all")
    return sweep_rows(lab)
