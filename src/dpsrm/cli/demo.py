"""`dpsrm demo`: a private model of health care use, beside a non-private one."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.show import Json, err, metrics_table, next_step, out, print_json, show_head


def demo(
    run: Annotated[Path | None, typer.Option("--out", help="The run folder.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Delete an existing run folder first.")] = False,
    as_json: Json = False,
) -> None:
    """Train on the RAND Health Insurance Experiment with DP-SRM at ε = 1, δ = 1e-5.

    Example: dpsrm demo --out runs/demo
    """
    from dpsrm.cli.job import TrainingJob, new_out, run_job
    from dpsrm.data import load_rand_health
    from dpsrm.methods import Srm
    from dpsrm.training import Model, Privacy, Settings, Training
    from dpsrm.training.config import plain

    folder = new_out(run, "demo", overwrite=overwrite)
    records, test, text = load_rand_health()
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5),
        method=Srm(max_grad_norm=1.0, max_diff_norm=0.5),
        training=Training(batch=500, epochs=10, learning_rate=2.0),
        record="one person-year",
    )
    if not as_json:
        err.print(text, highlight=False)
    model = Model(kind="logistic")
    job = TrainingJob(
        records=records,
        test=test,
        model=model,
        settings=settings,
        about={"model": plain(model), "preprocessing": records.description},
        out=folder,
        overwrite=overwrite,
        reference=True,
    )
    outcome = run_job(job)
    if as_json:
        print_json(outcome.to_json())
        return
    columns = {
        f"private, ε = {rounded_up(outcome.run.epsilon, 4)}": outcome.metrics["test"],
        "non-private": outcome.metrics["reference"],
    }
    out.print(metrics_table(f"{len(test.records)} held-out person-years", columns))
    out.print("Protected: any one record, here one person-year. Not protected: all records of a person together.")
    out.print(
        f"Published in {folder}: model, ledger, config, report. Keep {folder}/private to yourself.", soft_wrap=True
    )
    show_head(outcome.run.head)
    next_step("read the report, and show it to others", f"dpsrm report {quote(str(folder))} --open")
