"""`dpsrm audit`: canaries through a research run, and a lower bound of ε."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpsrm.accounting.guarantee import rounded_down, rounded_up
from dpsrm.cli.show import Json, err, out, print_json, save_figure
from dpsrm.core.errors import need


def audit(
    run: Annotated[Path | None, typer.Argument(help="A finished run, with --data and --against.")] = None,
    method: Annotated[str, typer.Option(help="See `dpsrm methods`.")] = "srm",
    model: Annotated[str, typer.Option(help="A model beside the canaries: none, logistic or mlp.")] = "none",
    epsilon: Annotated[float, typer.Option(help="The ε that is claimed.")] = 4.0,
    delta: Annotated[float, typer.Option(help="The δ that is claimed.")] = 1e-5,
    bound: Annotated[str, typer.Option(help="one-run, or per-step (tighter, for CI).")] = "one-run",
    sampling: Annotated[str, typer.Option(help="poisson or wor.")] = "poisson",
    canaries: Annotated[int, typer.Option(help="How many canaries.", min=100)] = 200_000,
    steps: Annotated[int, typer.Option(help="How many steps.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Of the research run.", min=0)] = 0,
    data: Annotated[Path | None, typer.Option(help="With RUN: records it was trained on.")] = None,
    against: Annotated[Path | None, typer.Option(help="With RUN: records left out of it by coin.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A .png or .svg file for the ROC.")] = None,
    as_json: Json = False,
) -> None:
    """Audit a method at a claimed ε (or a finished run): a lower bound of ε; exit 1 if it contradicts the claim.

    Example: dpsrm audit --method srm --epsilon 4 --json
    """
    if run is not None:
        _finished(run, data, against, as_json=as_json)
        return
    from dpsrm.audit import Target, audit_figure
    from dpsrm.audit import audit as audit_target
    from dpsrm.audit.audit import inner_model
    from dpsrm.cli.prove import bar
    from dpsrm.core.events import Scheme
    from dpsrm.methods import method_class

    need(sampling in ("poisson", "wor"), "sampling must be poisson or wor", sampling=sampling)
    need(model in ("none", "logistic", "mlp"), "the model must be none, logistic or mlp", model=model)
    chosen = method_class(method)
    need(chosen.private, f"{method} has no private form")
    target = Target(
        method=chosen(),
        epsilon=epsilon,
        delta=delta,
        sampling=Scheme(sampling),
        canaries=canaries,
        steps=steps,
        seed=seed,
        inner=inner_model(model),
    )
    with bar("canaries") as advance:
        result = audit_target(target, bound=bound, progress=advance)
    if plot is not None:
        save_figure(audit_figure(result), plot)
    if as_json:
        print_json({**result.facts(), "model": model})
    else:
        out.print(str(result), highlight=False, soft_wrap=True)
    if result.violated:
        raise typer.Exit(1)


def _finished(run: Path, data: Path | None, against: Path | None, *, as_json: bool) -> None:
    """Audit a finished run."""
    from dpsrm.audit.finished import audit_run

    need(data is not None, "to audit a finished run, give the records it was trained on", remedy="--data FILE")
    assert data is not None
    found = audit_run(run, data, against)
    if as_json:
        print_json(found.facts())
    else:
        out.print(
            f"claimed epsilon {rounded_up(found.claimed)} at delta {found.delta:g}; at least "
            f"{rounded_down(found.lower_bound, 4)} "
            f"(95 %; {found.right} of {found.guesses} guesses right)",
            highlight=False,
            soft_wrap=True,
        )
        err.print("valid if a fair coin decided for each record whether it was trained on", highlight=False)
    if found.lower_bound > found.claimed:
        raise typer.Exit(1)
