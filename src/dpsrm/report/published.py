"""What a run publishes about itself: `report.html`, `statement.json` and `model_card.md`, from the same facts.

Guarantee: functions of the published ledger, config, environment and the shapes of the parameters alone, so nothing
private can enter; no date, no address: made again, they are the same to the byte.
"""

from __future__ import annotations

import json

from dpsrm.report.attack import FALSE_POSITIVES, Attack, attack_on, epsilon_over_run
from dpsrm.report.attacker import attacker
from dpsrm.report.card import model_card
from dpsrm.report.charts import Axis, Chart, Curve
from dpsrm.report.checklist import checklist, formal
from dpsrm.report.described import Item
from dpsrm.report.facts import RunFacts
from dpsrm.report.markup import Markup, items, page, section, tag
from dpsrm.report.words import from_whom, headline, not_protected, protected

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
        attacker(attack),
        _facts(facts),
        _over_run(facts),
        _check(facts),
        note="Made by dpsrm from the run's ledger, config and environment alone; no private record was looked at for "
        "it. Exact figures on private or test records stand in private/report.html, which must not be published.",
    )


def _top(facts: RunFacts) -> Markup:
    """What holds, in plain words."""
    promised = facts.promised
    epsilon = "∞" if promised is None else f"{promised.epsilon:.4g}"
    delta = "–" if promised is None else f"{promised.delta:g}"
    boxes = [
        (f"ε = {epsilon}", "how much one record can change the odds"),
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
    return tag("h1", "Privacy report") + tag("p", headline(facts), class_=_class(facts)) + warning + shown + told


def _class(facts: RunFacts) -> str | None:
    """A run without a guarantee says so in red."""
    return "bad" if facts.promised is None else None


def _facts(facts: RunFacts) -> Markup:
    """The checklist."""
    groups = [
        tag("h3", head) + items((each.name, _said(each)) for each in group) for head, group in checklist(facts).items()
    ]
    return section("What a report must say", *groups, name="facts")


def _said(item: Item) -> Markup:
    """An item's words; what was not stated looks like it."""
    return tag("span", item.text, class_=None if item.said else "unsaid")


def _over_run(facts: RunFacts) -> Markup:
    """ε along the run."""
    points = epsilon_over_run(facts)
    if len(points) < 3:
        if facts.promised is None:
            return Markup("")
        text = "The cost was fixed before the run began; what it released on the way does not change it."
        return section("ε over the run", tag("p", text), name="run")
    limit = facts.ledger.header.epsilon
    last = points[-1]
    curves = [Curve(name="spent", points=points)]
    if limit is not None:
        curves.append(Curve(name="allowed", points=[(0.0, limit), (last[0], limit)], guess=True))
    chart = Chart(
        name="spent",
        title="ε over the run",
        alternative=f"ε of the first releases at the same δ: it rises to {last[1]:.4g} after {last[0]:.0f}.",
        x=Axis(label="releases", low=0.0, high=last[0]),
        y=Axis(label="ε", low=0.0, high=1.1 * max(last[1], limit or 0.0)),
        curves=curves,
    )
    return section("ε over the run", chart.render(), name="run")


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
            "accuracy": float(f"{attack.accuracy:.4g}"),
            "true_positives": {f"{rate:g}": float(f"{attack.true_positives(rate):.4g}") for rate in FALSE_POSITIVES},
        },
        "chain": {"lines": facts.ledger.charged[0], "head": facts.ledger.charged[1]},
        "items": said,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
