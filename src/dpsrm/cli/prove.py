"""`dpsrm prove`: run neighbours with the same randomness, and see that what is claimed holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dpsrm.cli.show import Json, err, out, print_json

if TYPE_CHECKING:
    from dpsrm.audit import Proof


def prove(
    setup: Annotated[
        Path | None,
        typer.Argument(help="A Python file whose setup() returns a dict of model, losses, data, settings; or a TOML."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Without a file: all proofs of the library.")] = False,
    rounds: Annotated[int, typer.Option(help="How many records are exchanged.", min=1)] = 2,
    as_json: Json = False,
) -> None:
    """Run the production step on neighbouring datasets and compare what passes the airlock; exit 1 if a claim fails.

    Without a file: the library itself, ten quick proofs or (--all) every method × sampling × engine.

    Example: dpsrm prove my_model.py
    """
    proofs = _library(everything=everything) if setup is None else {str(setup): _own(setup, rounds)}
    if as_json:
        print_json({"ok": all(proof.ok for proof in proofs.values()), "proofs": [_facts(*p) for p in proofs.items()]})
    else:
        _show(proofs)
    if not all(proof.ok for proof in proofs.values()):
        raise typer.Exit(1)


def _own(path: Path, rounds: int) -> Proof:
    """The proof of a user's setup."""
    from dpsrm.audit import prove as prove_setup
    from dpsrm.audit.setups import read_setup

    found = read_setup(path)
    with bar(path.name) as advance:
        return prove_setup(found.model, found.losses, found.data, found.settings, rounds=rounds, progress=advance)


def _library(*, everything: bool) -> dict[str, Proof]:
    """The proofs of the library."""
    from dpsrm.audit.cases import quick, trials

    chosen, found = list(trials()) if everything else quick(), {}
    with bar("proofs") as advance:
        for number, trial in enumerate(chosen):
            advance(number, len(chosen))
            found[str(trial)] = trial.prove()
        advance(len(chosen), len(chosen))
    return found


@contextmanager
def bar(title: str) -> Iterator[Any]:
    """A bar that is told (done, of how many)."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    with Progress(*columns, TimeElapsedColumn(), console=err) as shown:
        task = shown.add_task(title, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _facts(name: str, proof: Proof) -> dict[str, Any]:
    """What `--json` prints of a proof."""
    return {
        "name": name,
        "ok": proof.ok,
        "findings": list(proof.findings),
        "adjacency": proof.adjacency.value,
        "tried": proof.tried,
        "releases": proof.releases,
        "moved": proof.moved,
        "seconds": proof.seconds,
    }


def _show(proofs: dict[str, Proof]) -> None:
    """A line each."""
    for name, proof in proofs.items():
        mark = "✓" if proof.ok else "[red]✗[/]"
        out.print(f"{mark} {escape(name)}: {escape(str(proof))}", highlight=False, soft_wrap=True)
        for finding in proof.findings[1:]:
            out.print(f"  [red]✗[/] {escape(finding)}", highlight=False, soft_wrap=True)
    held = sum(proof.ok for proof in proofs.values())
    if len(proofs) > 1:
        tried, releases = (
            sum(each) for each in zip(*((sum(p.tried.values()), p.releases) for p in proofs.values()), strict=True)
        )
        out.print(f"{held} of {len(proofs)} proofs held: {tried} neighbours, {releases} releases compared")
