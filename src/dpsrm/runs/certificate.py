"""The certificate: the guarantee in plain words, a pure function of the verified ledger.

It is written before the ledger is closed, so that the closing line can bind it; it quotes the chain up to there.
"""

from __future__ import annotations

import math

from dpsrm.accounting import Guarantee, accountant, strict_epsilon
from dpsrm.accounting.guarantee import exponential_up, rounded_down, rounded_up
from dpsrm.core.errors import LedgerError
from dpsrm.core.events import (
    Adjacency,
    Charge,
    GaussianRelease,
    PureRelease,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)
from dpsrm.core.filter import fits_filter, whole_filter
from dpsrm.core.isolation import Isolation
from dpsrm.runs.ledger import Closing, LedgerFacts, ProtectedUnit

_READ = {
    "target_range": ("the range of targets", "target_range=(low, high)"),
    "classes": ("the list of classes", "classes=[…]"),
    "bounds": ("the columns' bounds", "bounds=(low, high)"),
}
"""Facts that a run may have read from the records, and how to declare them instead."""
_NOT_PROTECTED = """\
## What is not protected

- Several records of one person: the guarantee is for {unit}, one at a time.
- The number of records, the settings in `config.toml`, and what the user declared public (schema, classes, features).
- Choices made by looking at the data or at earlier runs on it; each run's guarantee adds to the others'.
- Anything in `private/`: exact functions of private records. Do not publish it.
"""
_NOT_PROTECTED_OF_UNITS = """\
## What is not protected

- Several units together (a family, if the unit is a person): the guarantee is for {unit}, one at a time.
- The number of units, N = {count}, and the most rows of one that count, k = {rows}. How many
  rows anyone has is protected.
- The settings in `config.toml`, and what the user declared public (schema, classes, features).
- That the ids are right: two ids of one person are two units.
- Choices made by looking at the data or at earlier runs on it; each run's guarantee adds to the others'.
- Anything in `private/`: exact functions of private records. Do not publish it.
"""


def prove(facts: LedgerFacts, closing: Closing | None) -> Guarantee | None:
    """The guarantee that the ledger's charges prove, or None for a run that promised none.

    Edge cases: a run that chose its releases as it went has the guarantee of its filter, fixed beforehand, not one of
    what it happened to spend; `LedgerError` if it spent more than the filter allows. A run that was stopped before its
    plan was fulfilled has the guarantee of the whole plan: what was released may have decided when to stop, and then
    the cost of the releases that happened to be made is not a bound (docs/decisions/early-stop.md).
    """
    header, spending = facts.header, proved_spending(facts, closing)
    if header.delta is None or spending is None:
        return None
    return strict_epsilon(accountant(header.accountant), spending, header.delta)


def proved_spending(facts: LedgerFacts, closing: Closing | None) -> Spending | None:
    """What the guarantee is the cost of: the charges, or the plan or filter they are a part of; None without one."""
    header, spending = facts.header, facts.spending
    if header.delta is None:
        return None
    if closing is not None and closing.planned:
        plan = Spending.of(closing.planned, adjacency=header.adjacency)
        if any(charge.count > plan.count(charge.event) for charge in spending.charges):
            raise LedgerError("the charges are no part of the plan that the closing line states")
        spending = plan
    if header.filter_rho is not None:
        if not fits_filter(spending, header.filter_rho):
            raise LedgerError(f"the charges exceed the zCDP filter that the ledger opens with: rho={header.filter_rho}")
        spending = whole_filter(spending, header.filter_rho)
    return spending


def isolation_sentence(isolation: Isolation) -> str:
    """What the guarantee takes for granted about module and loss, in words."""
    if isolation is Isolation.ALONE:
        return (
            "Every example was evaluated alone, on a copy of the model: through it none can enter another's "
            "contribution. What the model's code may keep elsewhere (globals, files), and that the code which reads "
            "the records makes each example of one of them, is the operator's to answer for."
        )
    if isolation is Isolation.CHECKED:
        return (
            "The guarantee assumes, on the operator's word, that module and loss treat every example by itself; each "
            "release compared a few random examples with what they give alone, which is no proof."
        )
    raise AssertionError(isolation)


def read_words(closing: Closing) -> str:
    """What is published although it was read from the records, in words; "" if nothing was."""
    return " and ".join(_READ[name][0] for name in closing.read)


def read_sentence(closing: Closing) -> str:
    """That some facts were read from the records, what holds all the same, and what to do instead; "" if none was."""
    if not closing.read:
        return ""
    instead = ", ".join(_READ[name][1] for name in closing.read)
    return (
        f"Not protected, because read from the records without noise and published: {read_words(closing)}. They may "
        "show a single record as it is. The guarantee holds for everything else, between records that agree in them; "
        f"for one without this exception, give {instead}, known without looking at the records."
    )


def render(facts: LedgerFacts, guarantee: Guarantee | None, closing: Closing) -> str:
    """The text of `certificate.md`; `closing` is the closing line that will follow, or that followed."""
    lines = ["# Privacy certificate", "", _promise(facts, guarantee, closing), ""]
    lines += [f"**An exception.** {read_sentence(closing)}", ""] if closing.read else []
    assumed = "**An assumption.** " if closing.isolation is Isolation.CHECKED else ""
    lines += [assumed + isolation_sentence(closing.isolation), ""]
    if not facts.header.private_randomness:
        lines += [
            "**Reproducible, not private.** The randomness came from a fixed seed: whoever knows the seed can remove "
            "the noise. The figures above would hold for the same run with secret randomness.",
            "",
        ]
    lines += ["## What was released", "", "| releases | of what | noise (std ÷ sensitivity) |", "|---|---|---|"]
    things = "records" if facts.header.unit is None else "units"
    lines += [_row(charge, things) for charge in facts.spending.charges]
    lines += [
        "",
        *_filtered(facts),
        f"Charged before release in `ledger.jsonl` ({facts.charged[0]} lines, link before the closing line "
        f"`{facts.charged[1]}`, then that line over this folder); {closing.released} releases made of "
        f"{facts.spending.releases} charged.",
        *_stopped(closing),
        f"Clipped sums by the {closing.engine} engine.",
        "",
        "| file | SHA-256 |",
        "|---|---|",
        *(f"| {name} | `{closing.files[name]}` |" for name in sorted(closing.files) if name != "certificate.md"),
        "",
        "Check it with `dpsrm verify`; with `--expect` and the chain's last head, if that was written down elsewhere "
        "when the run ended, the check also covers a folder rewritten as a whole.",
        "",
        _not_protected(facts.header.unit, closing.unit),
    ]
    return "\n".join(lines)


def _not_protected(unit: ProtectedUnit | None, words: str) -> str:
    """What the guarantee leaves out, for records or for units."""
    if unit is None:
        return _NOT_PROTECTED.format(unit=words)
    return _NOT_PROTECTED_OF_UNITS.format(unit=words, count=unit.count, rows=unit.rows)


def _filtered(facts: LedgerFacts) -> list[str]:
    """For a run that chose its releases as it went: what bounds them."""
    if facts.header.filter_rho is None:
        return []
    limit = f"ρ = {rounded_up(facts.header.filter_rho)}"
    return [f"These were chosen as the run went; it would have stopped before the sum of their ρ exceeded {limit}.", ""]


def _stopped(closing: Closing) -> list[str]:
    """For a run that was stopped early: how long it would have been, and whose guarantee it has."""
    if not closing.planned:
        return []
    planned = sum(charge.count for charge in closing.planned)
    return [
        f"The run was stopped before its plan of {planned} releases was fulfilled. The guarantee above is that of the "
        "whole plan, because what was released may have decided when to stop.",
    ]


def _promise(facts: LedgerFacts, guarantee: Guarantee | None, closing: Closing) -> str:
    """The first sentence: what holds, or that nothing does."""
    if guarantee is None or not math.isfinite(guarantee.epsilon):
        return "**No guarantee.** Exact statistics of the records were used without noise: ε = ∞."
    unit = closing.unit
    but = f", but for {read_words(closing)}, read from the records," if closing.read else ","
    if facts.header.adjacency is Adjacency.REPLACE_ONE:
        rows = "" if facts.header.unit is None else ", with any rows, more or fewer"
        change = f"if {unit} is replaced by any other{rows}"
    elif facts.header.adjacency is Adjacency.ADD_REMOVE:
        things = "records" if facts.header.unit is None else "units"
        change = (
            f"for a sampling rate fixed beforehand, if {unit} is added or removed (the number of {things}, which set "
            "that rate and stands in the ledger, is itself not protected)"
        )
    else:
        raise AssertionError(facts.header.adjacency)
    return (
        f"The model, and everything else in this folder outside `private/`{but} is "
        f"(ε = {rounded_up(guarantee.epsilon)}, δ = {rounded_up(guarantee.delta)})-differentially private: "
        f"{change}, the probability of any outcome changes by at most a factor "
        f"e^ε = {exponential_up(guarantee.epsilon, 4)}, plus δ. "
        f"Adjacency: {facts.header.adjacency.value}; accountant: {guarantee.accountant}."
    )


def _row(charge: Charge, things: str) -> str:
    """One line of the table of releases."""
    event = charge.event
    if isinstance(event, GaussianRelease):
        drawn = event.sampling
        what = f"sum over {drawn.batch} of {drawn.population} {things} ({drawn.scheme.value})"
        return f"| {charge.count} | {what} | {rounded_down(event.noise_multiplier)} |"
    if isinstance(event, PureRelease):
        return f"| {charge.count} | pure release | ε = {rounded_up(event.epsilon)} |"
    if isinstance(event, ZcdpRelease):
        return f"| {charge.count} | zCDP release | ρ = {rounded_up(event.rho)} |"
    if isinstance(event, UnprotectedRelease):
        return f"| {charge.count} | {event.what} | none |"
    raise AssertionError(event)
