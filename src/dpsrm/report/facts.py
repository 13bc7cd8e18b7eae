"""What a report is made of: the published files of a run, read back without torch, and the guarantee in plain words."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsrm.accounting import Guarantee
from dpsrm.accounting.guarantee import exponential_up, rounded_up
from dpsrm.core.errors import InputError, LedgerError
from dpsrm.core.events import Adjacency, GaussianRelease, Spending
from dpsrm.core.files import read_limited, read_toml
from dpsrm.runs.certificate import prove, proved_spending, read_sentence, read_words
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.ledger import Closing, LedgerFacts, read_ledger

_LONGEST_HEADER = 2**24
METRICS = {"log_loss": "log-loss", "auc": "AUC", "error": "0/1 error", "r2": "R²", "rmse": "RMSE", "mae": "MAE"}
"""The measures, in the words of tables."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as its published files tell it.

    Attributes:
        proved: what the guarantee is the cost of: what was charged, or the whole plan, or the filter; None without one.
        tensors: name and shape of every published parameter.
    """

    ledger: LedgerFacts
    closing: Closing
    guarantee: Guarantee | None
    proved: Spending | None
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def promised(self) -> Guarantee | None:
        """The guarantee, if it says anything."""
        return self.guarantee if self.guarantee is not None and self.guarantee.holds else None

    @property
    def gaussians(self) -> list[tuple[GaussianRelease, int]]:
        """The noisy sums that were charged, and how often each."""
        charges = self.ledger.spending.charges
        return [(each.event, each.count) for each in charges if isinstance(each.event, GaussianRelease)]

    @property
    def records(self) -> int | None:
        """n, of records or of units, which the ledger publishes, if it does."""
        unit = self.ledger.header.unit
        if unit is not None:
            return unit.count
        return self.gaussians[0][0].sampling.population if self.gaussians else None

    @property
    def thing(self) -> str:
        """What is counted and drawn: records, or units with all their rows."""
        return "record" if self.ledger.header.unit is None else "unit"

    @property
    def made_by(self) -> str:
        """The version of dpsrm that ran."""
        packages = self.environment.get("packages", {})
        return str(packages.get("dpsrm", "?")) if isinstance(packages, Mapping) else "?"

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of config.toml, empty if there is none."""
        found = self.config.get(name, {})
        return found if isinstance(found, Mapping) else {}


def read_facts(folder: RunFolder, closing: Closing | None = None) -> RunFacts:
    """Read a run folder; `closing` is the closing line that will follow, of a run that is about to end.

    Edge cases: `LedgerError` for a run without a closing line.
    """
    ledger = read_ledger(folder.ledger)
    closing = closing or ledger.closing
    if closing is None:
        raise LedgerError(f"{folder.path} is unfinished: there is nothing to report yet; dpsrm train --resume goes on")
    return RunFacts(
        ledger=ledger,
        closing=closing,
        guarantee=prove(ledger, closing),
        proved=proved_spending(ledger, closing),
        config=read_toml(folder.config),
        environment=_json(folder.environment.read_bytes(), "environment.json"),
        tensors=_tensors(folder),
    )


def _tensors(folder: RunFolder) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the head of a safetensors file: its length in 8 bytes, then JSON."""
    try:
        with folder.model.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            head = _json(file.read(min(length, _LONGEST_HEADER)), folder.model.name)
        return {name: tuple(head[name]["shape"]) for name in sorted(head) if name != "__metadata__"}
    except (OSError, struct.error, KeyError, TypeError) as error:
        raise InputError(f"{folder.model} is no safetensors file ({type(error).__name__})") from error


def _json(content: bytes, name: str) -> dict[str, Any]:
    """A JSON object of the run's."""
    try:
        body = json.loads(content)
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InputError(f"{name} is no JSON object")
    return body


def read_private_json(folder: RunFolder, name: str) -> dict[str, Any]:
    """A JSON file in `private/`, empty if it is not there."""
    path = folder.private / name
    return _json(read_limited(path, 2**24), name) if path.exists() else {}


def headline(facts: RunFacts) -> str:
    """One sentence that says what holds."""
    promised = facts.promised
    if promised is None:
        return "This model carries no privacy guarantee."
    unit, epsilon = facts.closing.unit, promised.epsilon
    if epsilon <= 1:
        strength = "a strong promise"
    elif epsilon <= 10:
        strength = "a moderate promise"
    else:
        strength = "a weak promise: above ε = 10 little is proved against a determined attacker"
    but = f", but for {read_words(facts.closing)} (read from the records, not protected)" if facts.closing.read else ""
    words = f"What anybody can learn from this model about {unit} is limited{but}."
    return f"{words} At ε = {rounded_up(epsilon, 3)} this is {strength}."


def protected(facts: RunFacts) -> str:
    """What the promise covers."""
    promised = facts.promised
    if promised is None:
        return "Nothing. Exact statistics of the records were used without noise (ε = ∞)."
    delta = rounded_up(promised.delta)
    replaced = facts.ledger.header.adjacency is Adjacency.REPLACE_ONE
    change = "is replaced by any other" if replaced else "is added or left out"
    return (
        f"Any {facts.closing.unit.removeprefix('one ')}, one at a time. If it {change}, no outcome becomes more than "
        f"{exponential_up(promised.epsilon, 3)} times as likely, but for a chance of {delta} "
        f"(ε = {rounded_up(promised.epsilon, 4)}, δ = {delta}).{_exception(facts)}"
    )


def _exception(facts: RunFacts) -> str:
    """The sentence on what was read from the records, after another one."""
    return f" {read_sentence(facts.closing)}" if facts.closing.read else ""


def from_whom(facts: RunFacts) -> str:
    """Who may look."""
    if facts.promised is None:
        return "From nobody."
    return (
        "From everybody who sees the published files, whatever else they know, even all other records. Not from the "
        "operator, who holds the records."
    )


def not_protected(facts: RunFacts) -> list[str]:
    """What the promise leaves out."""
    seeded = [] if facts.ledger.header.private_randomness else ["Anything, from those who know the seed of this run."]
    unit = facts.closing.unit
    read = [f"What was read from the records: {read_words(facts.closing)}."] if facts.closing.read else []
    several, known = "Several records of one person together", "The number of records"
    if (units := facts.ledger.header.unit) is not None:
        several = "Several units together (a family, if the unit is a person; whoever has two ids is two units)"
        known = (
            f"The number of units, and that at most {units.rows} rows of one count (how many anyone has is protected)"
        )
    return [
        *seeded,
        *read,
        f"{several}: the promise is for {unit}, one at a time.",
        "What is true of people in general: that smokers are ill more often can be learned, and then said of a smoker.",
        f"{known}, the settings, and what the operator declared public.",
        "Choices made by looking at the data, other runs on it, and everything in private/.",
    ]
