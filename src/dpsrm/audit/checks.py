"""What must hold of neighbours' transcripts: exact checks of pairs, and statistics of what they drew."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dpsrm.accounting import accountant
from dpsrm.audit.rehearsal import Attended, RehearsedCase, Transcript
from dpsrm.core.events import Adjacency, Charge, Scheme, Spending
from dpsrm.core.secret import LARGE
from dpsrm.mechanisms.airlock import grid
from dpsrm.mechanisms.watched import Passage, multiplier

ROUNDING = 1e-9
"""What sums and quotients of float64 may be off by, relative to their size."""


def factor(adjacency: Adjacency) -> int:
    """How many bounds apart neighbours' sums can be: a record takes one away and brings another, or only the one."""
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def charges(case: RehearsedCase, one: Transcript) -> Iterator[str]:
    """What was charged is what was drawn and released, on disk too, and the certificate says no less."""
    if one.refusal is not None:
        return
    events = [passage.price for passage in one.passages]
    for number, passage in enumerate(one.passages):
        expected = Spending.of([Charge(event, 1) for event in events[: number + 1]], adjacency=case.adjacency)
        if not _same(passage.spent, expected):
            yield f"release {number} was not charged as it was made: {_told(expected)}; charged {_told(passage.spent)}"
            return
    total = Spending.of([Charge(event, 1) for event in events], adjacency=case.adjacency)
    short = [c for c in total.charges if one.ledger.count(c.event) < c.count]
    if short:
        yield f"the ledger on disk has fewer charges than releases were made: {short[0]}"
    privacy = case.plan.privacy
    if privacy is not None and one.epsilon is not None and not case.plan.method.adaptive:
        spent = accountant(privacy.accountant).epsilon(total, privacy.delta).epsilon
        if one.epsilon < spent * (1 - ROUNDING):
            yield f"the certificate says epsilon {one.epsilon:.6g}; what was released costs {spent:.6g}"
    if not one.beyond:
        yield "a release beyond what the budget allows was accepted"


def _same(one: Spending, other: Spending) -> bool:
    """Whether two spendings hold the same releases, in whatever order."""
    return {c.event: c.count for c in one.charges} == {c.event: c.count for c in other.charges}


def _told(spending: Spending) -> str:
    """A spending in a few words."""
    return " + ".join(f"{c.count} × {c.event}" for c in spending.charges) or "nothing"


def draws(case: RehearsedCase, one: Transcript) -> Iterator[str]:
    """Every release is over the records that its sampling says: different ones, exactly b unless Poisson."""
    for number, (there, passage) in enumerate(zip(one.attended, one.passages, strict=False)):
        drawn, sampling = there.indices, passage.sampling
        planned = case.plan.sampling(sampling.batch)
        if sampling != planned or sampling.population != len(case.records):
            yield f"release {number} is charged for {sampling}, the plan says {planned}"
        if len(set(drawn.tolist())) != len(drawn):
            yield f"release {number} has a record twice in its batch: it counts twice and is charged once"
        elif sampling.scheme is not Scheme.POISSON and len(drawn) != sampling.batch:
            yield f"release {number} is over {len(drawn)} records, charged for {sampling.batch}"


def sizes(case: RehearsedCase, one: Transcript) -> Iterator[str]:
    """The noise was made for the sensitivity that the question and the adjacency imply."""
    for number, (there, passage) in enumerate(zip(one.attended, one.passages, strict=False)):
        implied, s = factor(case.adjacency) * there.bound, multiplier(passage.price)
        if not passage.choice and passage.std < s * passage.claimed * (1 - ROUNDING):
            yield f"release {number} has noise of {passage.std:.6g} where {s:.6g} sensitivities are charged"
            return
        if passage.claimed < implied * (1 - ROUNDING):
            yield (
                f"release {number} was given noise for a sensitivity of {passage.claimed:.6g}; its clips and "
                f"{case.adjacency.value} adjacency imply {implied:.6g}"
            )
            return


def pair(case: RehearsedCase, one: Transcript, other: Transcript) -> Iterator[str]:
    """Neighbours with the same randomness and the same releases: sums within the sensitivity, the rest the same."""
    if other.refusal is not None and one.refusal is None and len(other.passages) == 0:
        return
    for number, (a, b) in enumerate(zip(one.passages, other.passages, strict=False)):
        found = _asked(one.attended[number], other.attended[number], a, b)
        if found:
            yield f"release {number}: {found}"
            return
        yield from (f"release {number}: {what}" for what in _passed(a, b))
    if one.refusal is None and other.refusal is None:
        if len(one.passages) != len(other.passages):
            yield "how many releases are made depends on a record"
        yield from _published(one, other)


def _asked(one: Attended, other: Attended, a: Passage, b: Passage) -> str:
    """What differs in what was asked, given the same releases."""
    if (a.claimed, a.std, a.price, a.sampling) != (b.claimed, b.std, b.price, b.sampling):
        return "what is asked (clip, noise or batch) depends on a record, not only on what was released"
    if one.bound != other.bound:
        return "the clip depends on a record"
    if one.indices.tolist() != other.indices.tolist():
        return "which records are drawn depends on what is in them"
    return ""


def _passed(a: Passage, b: Passage) -> Iterator[str]:
    """The sums' distance, and that the noise is the same and was added to them."""
    moved = movement(a, b)
    if not moved <= a.claimed * (1 + ROUNDING):
        yield f"one record moved the sum by {moved:.6g}, the claimed sensitivity is {a.claimed:.6g}"
    if a.choice:
        return
    size, difference = float(a.sampling.batch), (b.exact - a.exact)
    left = float((size * (b.released - a.released) - difference).abs().max())
    if not left <= _rounding(a, b):
        yield f"what was released is not the sum plus the same noise, over the public batch size (off by {left:.3g})"


def _rounding(a: Passage, b: Passage) -> float:
    """What rounding may leave: of float64, and of a large release's public grid."""
    size = max(float(x.abs().max()) for x in (a.exact, b.exact, a.sampling.batch * a.released))
    return ROUNDING * size + (grid(a.std) if a.exact.numel() > LARGE and a.std > 0 else 0.0)


def movement(a: Passage, b: Passage) -> float:
    """How far apart the sums are; of a choice's scores, how far they move apart."""
    difference: Tensor = b.exact - a.exact
    if a.choice:
        return float(difference.max() - difference.min())
    return float(torch.linalg.vector_norm(difference))


def _published(one: Transcript, other: Transcript) -> Iterator[str]:
    """Every published byte is the same."""
    for name in sorted({*one.published, *other.published}):
        if one.published.get(name) != other.published.get(name):
            yield f"{name} changed with a record although all releases were the same"
