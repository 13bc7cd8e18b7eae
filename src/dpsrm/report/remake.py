"""Make the pages of a finished run again, without breaking what its ledger binds."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dpsrm.core.errors import InputError, LedgerError, need
from dpsrm.core.files import write_atomically
from dpsrm.report.facts import read_facts
from dpsrm.report.published import documents, write_private_report
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.verify import verify


@dataclass(frozen=True, kw_only=True)
class Remade:
    """Where the pages are; `private` only if the run's `private/` is there."""

    report: Path
    private: Path | None


def remake(run: Path, *, out: Path | None = None) -> Remade:
    """Write the pages of `run` again: in their place, or into the folder `out`.

    Guarantee: in their place only the very bytes that the ledger's closing line binds are written, so a run that
    verifies still does. Pages that this version of dpsrm words differently need `out`. A run that does not verify, but
    for these pages, has none.
    """
    folder = RunFolder(run)
    need(folder.ledger.exists(), "a run is a folder with a ledger", run=str(run), remedy="give the folder of --out")
    facts = read_facts(folder)
    made = documents(facts)
    wrong = [problem for problem in verify(run).problems if not problem.startswith(tuple(made))]
    if wrong:
        raise LedgerError(f"{run} does not verify, so there is nothing to show: {'; '.join(wrong)}")
    other = [name for name, content in made.items() if facts.closing.files.get(name) != sha256(content).hexdigest()]
    if out is None and other:
        raise InputError(
            f"this version of dpsrm makes another {', '.join(other)} of {run} than its ledger binds; the published one "
            "stays; give --out FOLDER to write the new one elsewhere"
        )
    place = folder.path if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        write_atomically(place / name, content)
    if folder.private.is_dir():
        write_private_report(folder)
    return Remade(report=place / folder.report.name, private=folder.private_report if folder.private.is_dir() else None)
