"""Check a run folder: the chain, the budget, the model's digest and the certificate's words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpsrm.accounting import Guarantee
from dpsrm.core.errors import DpsrmError, InputError
from dpsrm.core.ledger import LedgerFacts, read_ledger
from dpsrm.training.certificate import prove, render
from dpsrm.training.folder import RunFolder, sha256_of
from dpsrm.training.toml import read_toml


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found; `problems` is empty when the run can be believed."""

    problems: tuple[str, ...]
    guarantee: Guarantee | None
    facts: LedgerFacts | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(run: Path) -> Verification:
    """Recompute ε from the ledger of `run` and compare everything that can be published with it.

    Edge cases: a run that was stopped has no closing line; its charges still count and it is reported as unfinished.
    """
    folder = RunFolder(run)
    if not run.is_dir():
        raise InputError(f"a run is a folder; got {str(run)!r}; give the folder that --out named")
    try:
        facts = read_ledger(folder.ledger)
        guarantee = prove(facts)
    except DpsrmError as error:
        return Verification(problems=(str(error),), guarantee=None, facts=None)
    problems = _budget_problems(facts, guarantee)
    if facts.closed:
        problems += _file_problems(folder, facts, guarantee)
    else:
        problems += ["the run is unfinished: the ledger has no closing line (its charges count all the same)"]
    return Verification(problems=tuple(problems), guarantee=guarantee, facts=facts)


def _budget_problems(facts: LedgerFacts, guarantee: Guarantee | None) -> list[str]:
    """Spending above the promise."""
    if guarantee is None or facts.header.epsilon is None or guarantee.epsilon <= facts.header.epsilon:
        return []
    return [f"the ledger's charges cost epsilon={guarantee.epsilon:.6g}, above the promised {facts.header.epsilon:.6g}"]


def _file_problems(folder: RunFolder, facts: LedgerFacts, guarantee: Guarantee | None) -> list[str]:
    """A model or a certificate that is not the one the ledger closed with."""
    problems = []
    if facts.released is None or facts.released > facts.spending.releases:
        problems.append(f"{facts.released} releases were made of {facts.spending.releases} charged")
    try:
        if sha256_of(folder.model) != facts.model_sha256:
            problems.append("model.safetensors is not the model this run produced")
        unit = str(read_toml(folder.config).get("record"))
        if folder.certificate.read_text() != render(facts, guarantee, unit=unit):
            problems.append("certificate.md does not say what the ledger proves")
    except (OSError, ValueError) as error:
        problems.append(f"the run folder is incomplete or malformed: {error}")
    return problems
