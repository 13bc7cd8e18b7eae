"""`dpsrm verify`: believe a run folder, or say why not."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.show import Json, next_step, out, plain_text, print_json
from dpsrm.core.isolation import Isolation

if TYPE_CHECKING:
    from dpsrm.runs import Verification


def verify(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    expect: Annotated[
        str | None, typer.Option(help="The chain head that training printed, if you wrote it down elsewhere.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute ε from a run's ledger and compare every published byte with it; exit 1 if anything is wrong.

    Without --expect a folder that was rewritten as a whole, ledger included, is not noticed.

    Example: dpsrm verify runs/demo
    """
    from dpsrm.runs import verify as verify_run

    result = _with_pages(verify_run(run, expect=expect), run)
    if as_json:
        print_json(_facts(result))
    else:
        _show(result, expected=expect is not None)
    if not result.ok:
        raise typer.Exit(1)
    if not as_json:
        next_step("read what it promises", f"dpsrm report {quote(str(run))} --open")


def _with_pages(result: Verification, run: Path) -> Verification:
    """The same, and whether the pages say what this version makes of the ledger, if it was this version's run."""
    import dpsrm
    from dpsrm.report import differing
    from dpsrm.runs import RunFolder

    if not result.ok or result.facts is None:
        return result
    wrong, made_by = differing(RunFolder(run))
    if made_by != dpsrm.__version__:
        return result
    words = tuple(f"{name} does not say what the ledger proves" for name in wrong)
    return replace(result, problems=(*result.problems, *words))


def _facts(result: Verification) -> dict[str, Any]:
    """What `--json` prints."""
    facts, closing = result.facts, None if result.facts is None else result.facts.closing
    return {
        "ok": result.ok,
        "problems": list(result.problems),
        "head": None if facts is None else facts.head,
        "private_randomness": None if facts is None else facts.header.private_randomness,
        "unit": None if closing is None else closing.unit,
        "units": None if facts is None or facts.header.unit is None else asdict(facts.header.unit),
        "isolation": None if closing is None else closing.isolation.value,
        "engine": None if closing is None else closing.engine,
        **({} if result.guarantee is None else result.guarantee.to_json()),
    }


def _show(result: Verification, *, expected: bool) -> None:
    """The same for people."""
    from dpsrm.runs.certificate import isolation_sentence, read_sentence

    guarantee, facts = result.guarantee, result.facts
    for problem in result.problems:
        out.print(f"[red]✗[/] {plain_text(problem)}", highlight=False, soft_wrap=True)
    if result.ok and guarantee is not None:
        proved = f"ε = {rounded_up(guarantee.epsilon)} at δ = {rounded_up(guarantee.delta)}"
        out.print(f"✓ the ledger is intact and proves {proved}")
    elif result.ok:
        out.print("✓ the ledger is intact; it promises no privacy (ε = ∞)")
    if result.ok and expected:
        out.print("✓ it ends with the expected head: nothing was changed since that was written down")
    if facts is not None and facts.header.unit is not None:
        out.print(
            f"✓ protected: one unit with all its rows; {plain_text(facts.header.unit)}", highlight=False, soft_wrap=True
        )
    if facts is not None and facts.closing is not None and facts.closing.isolation is Isolation.CHECKED:
        out.print(f"! {plain_text(isolation_sentence(facts.closing.isolation))}", highlight=False, soft_wrap=True)
    if facts is not None and facts.closing is not None and facts.closing.read:
        out.print(f"! {plain_text(read_sentence(facts.closing))}", highlight=False, soft_wrap=True)
    if facts is not None and not facts.header.private_randomness:
        out.print("! seeded: reproducible, not private")
