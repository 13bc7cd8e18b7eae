"""The certificate: the guarantee in plain words, a pure function of the verified ledger."""

from __future__ import annotations

import math

from dpsrm.accounting import Guarantee, accountant, strict_epsilon
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, PureRelease, UnprotectedRelease, ZcdpRelease
from dpsrm.core.ledger import LedgerFacts

_NOT_PROTECTED = """\
## What is not protected

- Several records of one person: the guarantee is for {unit}, one at a time.
- The number of records, the settings in `config.toml`, and what the user declared public (schema, classes, features).
- Choices made by looking at the data or at earlier runs on it; each run's guarantee adds to the others'.
- Anything in `private/`: exact functions of private records. Do not publish it.
"""


def prove(facts: LedgerFacts) -> Guarantee | None:
    """The guarantee that the ledger's charges prove, or None for a run that promised none."""
    if facts.header.delta is None:
        return None
    return strict_epsilon(accountant(facts.header.accountant), facts.spending, facts.header.delta)


def render(facts: LedgerFacts, guarantee: Guarantee | None, *, unit: str) -> str:
    """The text of `certificate.md`."""
    lines = ["# Privacy certificate", "", _promise(facts, guarantee, unit), ""]
    if not facts.header.private_randomness:
        lines += [
            "**Reproducible, not private.** The randomness came from a fixed seed: whoever knows the seed can remove "
            "the noise. The figures above would hold for the same run with secret randomness.",
            "",
        ]
    lines += ["## What was released", "", "| releases | of what | noise (std ÷ sensitivity) |", "|---|---|---|"]
    lines += [_row(charge) for charge in facts.spending.charges]
    lines += [
        "",
        f"Charged before release in `ledger.jsonl` ({facts.lines} lines, chain head `{facts.head}`); "
        f"{facts.released} releases made of {facts.spending.releases} charged. Model SHA-256 `{facts.model_sha256}`.",
        "Check it with `dpsrm verify`.",
        "",
        _NOT_PROTECTED.format(unit=unit),
    ]
    return "\n".join(lines)


def _promise(facts: LedgerFacts, guarantee: Guarantee | None, unit: str) -> str:
    """The first sentence: what holds, or that nothing does."""
    if guarantee is None or not math.isfinite(guarantee.epsilon):
        return "**No guarantee.** Exact statistics of the records were used without noise: ε = ∞."
    if facts.header.adjacency is Adjacency.REPLACE_ONE:
        change = f"if {unit} is replaced by any other"
    elif facts.header.adjacency is Adjacency.ADD_REMOVE:
        change = (
            f"for a sampling rate fixed beforehand, if {unit} is added or removed (the number of records, which set "
            "that rate and stands in the ledger, is itself not protected)"
        )
    else:
        raise AssertionError(facts.header.adjacency)
    return (
        f"The model, and everything else in this folder outside `private/`, is (ε = {guarantee.epsilon:.6g}, "
        f"δ = {guarantee.delta:g})-differentially private: {change}, the probability of any outcome "
        f"changes by at most a factor e^ε = {math.exp(guarantee.epsilon):.4g}, plus δ. "
        f"Adjacency: {facts.header.adjacency.value}; accountant: {guarantee.accountant}."
    )


def _row(charge: Charge) -> str:
    """One line of the table of releases."""
    event = charge.event
    if isinstance(event, GaussianRelease):
        drawn = event.sampling
        what = f"sum over {drawn.batch} of {drawn.population} records ({drawn.scheme.value})"
        return f"| {charge.count} | {what} | {event.noise_multiplier:.6g} |"
    if isinstance(event, PureRelease):
        return f"| {charge.count} | pure release | ε = {event.epsilon:g} |"
    if isinstance(event, ZcdpRelease):
        return f"| {charge.count} | zCDP release | ρ = {event.rho:g} |"
    if isinstance(event, UnprotectedRelease):
        return f"| {charge.count} | {event.what} | none |"
    raise AssertionError(event)
