"""What a run publishes about itself: `report.html`, `statement.json` and `model_card.md`, made and written.

Guarantee: functions of the published ledger, config, environment and the shapes of the parameters alone, so nothing
private can enter; no date, no address: made again, they are the same to the byte.
"""

from __future__ import annotations

import json
from dataclasses import replace

from dpsrm.accounting import Guarantee
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.core.files import write_atomically
from dpsrm.report.attack import FALSE_POSITIVES, Attack, attack_on, attacker, over_run
from dpsrm.report.checklist import Item, checklist, formal, model_card
from dpsrm.report.facts import RunFacts, from_whom, headline, not_protected, protected, read_facts
from dpsrm.report.operator import operator_page, read_journal
from dpsrm.report.page import Markup, items, page, section, tag
from dpsrm.runs.certificate import render
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.ledger import Closing

VERSION = 1
"""Of statement.json."""


def documents(facts: RunFacts) -> dict[str, bytes]:
    """The files, by name."""
    attack = attack_on(facts)
    return {
        "statement.json": _statement(facts, attack).encode(),
        "model_card.md": model_card(facts).encode(),
        "report.html": report(facts, attack).encode(),
    }


def report(facts: RunFacts, attack: Attack | None) -> str:
    """The publishable page."""
    return page(
        "Privacy report",
        _top(facts),
        attacker(attack, facts.noun),
        _facts(facts),
        over_run(facts),
        _check(facts),
        note="Made by dpsrm from the run's ledger, config and environment alone; no private record was looked at for "
        "it. Exact figures on private or test records stand in private/report.html, which must not be published.",
    )


def _top(facts: RunFacts) -> Markup:
    """What holds, in plain words."""
    promised = facts.promised
    epsilon = "∞" if promised is None else rounded_up(promised.epsilon, 4)
    delta = "–" if promised is None else rounded_up(promised.delta)
    boxes = [
        (f"ε = {epsilon}", f"how much one {facts.noun} can change the odds"),
        (f"δ = {delta}", "chance that this fails"),
        (facts.closing.unit, "what is protected, one at a time"),
    ]
    shown = tag("ul", *(tag("li", tag("b", big), tag("span", small)) for big, small in boxes), class_="figure")
    warning = Markup("")
    if not facts.ledger.header.private_randomness:
        text = "Reproducible, not private: the randomness came from a fixed seed, and the noise can be removed."
        warning = tag("p", text, class_="bad")
    told = items(
        [
            ("Protected", protected(facts)),
            ("From whom", from_whom(facts)),
            ("Not protected", tag("ul", *(tag("li", text) for text in not_protected(facts)))),
        ]
    )
    first = tag("p", headline(facts), class_="bad" if promised is None else None)
    return tag("h1", "Privacy report") + first + warning + shown + told


def _facts(facts: RunFacts) -> Markup:
    """The checklist."""
    groups = [
        tag("h3", head) + items((each.name, _said(each)) for each in group) for head, group in checklist(facts).items()
    ]
    return section("What a report must say", *groups, name="facts")


def _said(item: Item) -> Markup:
    """An item's words; what was not stated looks like it."""
    return tag("span", item.text, class_=None if item.said else "unsaid")


def _check(facts: RunFacts) -> Markup:
    """How to check all this."""
    lines, head = facts.ledger.charged
    command = "dpsrm verify RUN --expect HEAD"
    words = (
        "Every charge stands in ledger.jsonl, a chain of hashes, written before what it pays for was released. The "
        "command recomputes ε from it and compares every published byte, this page included. HEAD is the chain's last "
        "hash, which the operator wrote down elsewhere; without it a folder rewritten as a whole passes."
    )
    chain = items(
        [
            (f"Chain after {lines} lines", tag("code", head)),
            ("Made with", f"dpsrm {facts.made_by}; all versions in environment.json"),
        ]
    )
    return section("Check it", tag("p", words), tag("pre", command), chain, name="check")


def _statement(facts: RunFacts, attack: Attack | None) -> str:
    """The same for machines."""
    promised, header = facts.promised, facts.ledger.header
    said = {item.key: item.text if item.said else None for group in checklist(facts).values() for item in group}
    body = {
        "kind": "dpsrm statement",
        "version": VERSION,
        "epsilon": None if promised is None else promised.epsilon,
        "delta": None if promised is None else promised.delta,
        "accountant": None if promised is None else promised.accountant,
        "adjacency": header.adjacency.value,
        "unit": facts.closing.unit,
        "private_randomness": header.private_randomness,
        "formal": formal(facts),
        "protected": protected(facts),
        "not_protected": not_protected(facts),
        "read_from_records": list(facts.closing.read),
        "releases": [
            {
                "count": count,
                "noise_multiplier": event.noise_multiplier,
                "scheme": event.sampling.scheme.value,
                "batch": event.sampling.batch,
                "records": event.sampling.population,
            }
            for event, count in facts.gaussians
        ],
        "attack": None
        if attack is None
        else {
            "accuracy": float(rounded_up(attack.accuracy, 4)),
            "true_positives": {
                f"{rate:g}": float(rounded_up(attack.true_positives(rate), 4)) for rate in FALSE_POSITIVES
            },
        },
        "chain": {"lines": facts.ledger.charged[0], "head": facts.ledger.charged[1]},
        "items": said,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def publish_words(folder: RunFolder, closing: Closing) -> tuple[Guarantee | None, Closing]:
    """Write all that a run says about itself; the guarantee, and `closing` with the digests of what was written.

    A run killed here writes the same bytes again. The certificate comes last, because it names the others' digests.
    """
    facts = read_facts(folder, closing)
    for name, content in documents(facts).items():
        write_atomically(folder.path / name, content)
    said = folder.digests(folder.statement, folder.card, folder.report)
    closing = replace(closing, files={**closing.files, **said})
    write_atomically(folder.certificate, render(facts.ledger, facts.guarantee, closing).encode())
    write_private_report(folder)
    return facts.guarantee, replace(closing, files={**closing.files, **folder.digests(folder.certificate)})


def write_private_report(folder: RunFolder) -> None:
    """Write the operator's page from what `private/` holds now."""
    text = operator_page(read_journal(folder))
    write_atomically(folder.private_report, text.encode(), mode=0o600)


def differing(folder: RunFolder) -> tuple[list[str], str]:
    """The published pages that are not what this version of dpsrm makes of the same facts; which version made them."""
    facts = read_facts(folder)
    wrong = [name for name, content in documents(facts).items() if (folder.path / name).read_bytes() != content]
    return wrong, facts.made_by
