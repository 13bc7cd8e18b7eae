"""`dpsrm reproduce rates` and `dpsrm reproduce accountants`: the paper's theory, measured and computed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dpsrm.cli.show import out, print_json, track
from dpsrm.core.errors import need


def reproduce_rates(
    data: Path, results: Path, *, trials: int, workers: int, run: bool, docs: Path, as_json: bool
) -> None:
    """Run the trials that are missing; write the table of fitted exponents and the figure."""
    from dpsrm.experiments.rate_figures import draw_rates, rates_table
    from dpsrm.experiments.rates import all_series, measured, missing_jobs
    from dpsrm.experiments.runner import Lab, run_jobs

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
