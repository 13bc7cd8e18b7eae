"""Check a run folder: the chain, the budget, and every byte that is published against the ledger's closing line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dpsrm.accounting import Guarantee
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.accounting.position import need_reserved
from dpsrm.core.errors import DpsrmError, InputError, need
from dpsrm.core.files import read_toml, sha256_of
from dpsrm.runs.certificate import prove, render
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.ledger import Closing, LedgerFacts, read_from_records, read_ledger


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification:
    """What `verify` found; `problems` is empty when the run can be believed."""

    problems: tuple[str, ...]
    guarantee: Guarantee | None
    facts: LedgerFacts | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __repr__(self) -> str:
        """One line: what is proved, or what is wrong."""
        proved = "no ε" if self.guarantee is None else str(self.guarantee)
        return f"<Verification: {'ok, ' + proved if self.ok else '; '.join(self.problems)}>"


def verify(run: Path | str, *, expect: str | None = None) -> Verification:
    """Recompute ε from the ledger of `run` and compare everything that is published with it.

    Args:
        expect: the ledger's last hash, written down elsewhere when the run ended (`Run.head`).

    Guarantee: with `expect`, every published byte is what it was then (SHA-256). Without it, published files and ledger
    agree with each other; whoever rewrites all of them together is not noticed.

    Edge cases: a run that was stopped has no closing line; its charges still count and it is reported as unfinished.
    """
    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise InputError(f"a run is a folder; got {str(run)!r}; give the folder that --out named")
    something = folder.ledger.exists() or any(path.exists() for path in folder.bound)
    need(something, "a run is a folder with a ledger", run=str(run), remedy="give the folder of --out")
    known = expect is None or re.fullmatch("[0-9a-f]{64}", expect) is not None
    need(known, "a chain head has 64 hexadecimal digits", expect=expect, remedy="copy all that training printed")
    try:
        facts = read_ledger(folder.ledger)
        guarantee = prove(facts, facts.closing)
    except DpsrmError as error:
        return Verification(problems=(str(error),), guarantee=None, facts=None)
    problems = _head_problems(facts, expect) + _budget_problems(folder, facts, guarantee)
    if facts.closing is not None:
        problems += _file_problems(folder, facts.closing) + _word_problems(folder, facts, guarantee, facts.closing)
    else:
        problems += ["the run is unfinished: the ledger has no closing line (its charges count all the same)"]
    return Verification(problems=tuple(problems), guarantee=guarantee, facts=facts)


def _head_problems(facts: LedgerFacts, expect: str | None) -> list[str]:
    """Another chain than the one that was written down."""
    if expect is None or facts.head == expect:
        return []
    if expect in facts.links:
        at = f"line {facts.links.index(expect) + 1} of {facts.lines}"
        words = f"the expected head is not the last one: that is an inner link ({at})"
        return [f"{words}; compare with the head that training printed"]
    return [f"the ledger ends with {facts.head}, not with the expected head: it is not the one that was written down"]


def _budget_problems(folder: RunFolder, facts: LedgerFacts, guarantee: Guarantee | None) -> list[str]:
    """Spending above the promise, and a shared budget that no longer holds what this run reserved."""
    problems = []
    allowed = facts.header.epsilon
    if guarantee is not None and allowed is not None and not guarantee.epsilon <= allowed:
        problems.append(
            f"the ledger's charges cost epsilon={rounded_up(guarantee.epsilon)}, above the promised {allowed:.6g}"
        )
    try:
        need_reserved(folder.path)
    except DpsrmError as error:
        problems.append(str(error))
    return problems


def _file_problems(folder: RunFolder, closing: Closing) -> list[str]:
    """Published files that are not those the ledger was closed over: changed, missing, or too many."""
    problems = []
    for path in folder.bound:
        try:
            if sha256_of(path) != closing.files.get(path.name):
                problems.append(f"{path.name} was changed: it is not the one the ledger was closed with")
        except OSError as error:
            problems.append(f"{path.name} is missing or cannot be read: {error.strerror}")
    expected = {path.name for path in (*folder.bound, folder.ledger, folder.private)}
    extra = sorted(path.name for path in folder.path.iterdir() if path.name not in expected)
    words = "is not part of the run: the ledger was not closed over it; move it elsewhere"
    return problems + [f"{name} {words}" for name in extra]


def _word_problems(folder: RunFolder, facts: LedgerFacts, guarantee: Guarantee | None, closing: Closing) -> list[str]:
    """A certificate that says something else than the ledger, and a closing line that cannot be."""
    problems = []
    if not 0 <= closing.released <= facts.spending.releases:
        problems.append(f"{closing.released} releases were made of {facts.spending.releases} charged")
    if set(closing.files) != {path.name for path in folder.bound}:
        problems.append(f"the ledger was closed over other files than a run has: {sorted(closing.files)}"[:200])
    if facts.header.unit is not None:
        problems += facts.header.unit.problems(facts.spending)
    problems += _unsaid(folder, closing)
    try:
        if folder.certificate.read_bytes() != render(facts, guarantee, closing).encode():
            problems.append("certificate.md does not say what the ledger proves")
    except OSError:
        pass  # named already, as missing
    return problems


def _unsaid(folder: RunFolder, closing: Closing) -> list[str]:
    """Facts that config.toml calls read from the records, while the certificate claims that they are protected."""
    try:
        hidden = set(read_from_records(read_toml(folder.config))) - set(closing.read)
    except DpsrmError:
        return []  # named already, as changed or missing
    return [f"{name}: read from the records, says config.toml, but the certificate does not" for name in sorted(hidden)]
