"""Everything a report must say, item by item, and the model card that is made of the same items.

The list is that of Ponomareva et al. 2023 (arXiv 2303.00654, §5.3) and NIST SP 800-226.
"""

from __future__ import annotations

import json

from dpsrm.core.events import Adjacency
from dpsrm.report.described import Item, model, native, said_by_operator, trust
from dpsrm.report.facts import RunFacts, from_whom, not_protected, protected
from dpsrm.runs.certificate import isolation_sentence


def checklist(facts: RunFacts) -> dict[str, list[Item]]:
    """All items, by the heading they stand under."""
    return {
        "The guarantee": [*_guarantee(facts), *_proof(facts)],
        "The numbers behind it": native(facts),
        "Data and model": model(facts),
        "Trust, and what is not covered": trust(facts),
        "Said by the operator": said_by_operator(facts),
    }


def formal(facts: RunFacts) -> str:
    """The guarantee as a formula."""
    promised = facts.promised
    if promised is None:
        return "None: exact statistics of the records were used without noise (ε = ∞)."
    relation = facts.ledger.header.adjacency.value
    return (
        f"For all {relation} neighbours D, D′ and all sets S of outcomes: "
        f"P(M(D) ∈ S) ≤ e^{promised.epsilon:.4g} · P(M(D′) ∈ S) + {promised.delta:g}."
    )


def _guarantee(facts: RunFacts) -> list[Item]:
    """What is promised, about whom, and what was looked at."""
    relation = facts.ledger.header.adjacency
    if relation is Adjacency.REPLACE_ONE:
        words = "replace-one: one record is exchanged for any other; the number of records is public"
    elif relation is Adjacency.ADD_REMOVE:
        words = "add-remove: one record is added or left out; the number of records set the sampling rate and is public"
    else:
        raise AssertionError(relation)
    unit = facts.closing.unit
    return [
        Item("setting", "Setting", "Central: the operator holds the records; what is published is protected."),
        Item("formal", "Formal statement", formal(facts)),
        Item(
            "unit",
            "Unit of privacy",
            f"{unit[:1].upper()}{unit[1:]}. Whoever has k of them has at most k times the ε (group privacy), and a "
            "δ that grows faster.",
        ),
        Item("adjacency", "Neighbouring datasets", words.capitalize() + "."),
        Item("delta_against_n", "δ against 1/n", _delta_words(facts)),
        Item("accesses", "Accesses covered", _accesses(facts)),
        Item("released", "What is released", _released(facts)),
    ]


def _delta_words(facts: RunFacts) -> str:
    """δ beside the number of records."""
    promised, n = facts.promised, facts.records
    if promised is None or n is None:
        return "Does not apply."
    share = promised.delta * n
    verdict = (
        "well below 1: it does not leave room for a mechanism that publishes somebody's record as it is"
        if share <= 0.5
        else "not well below 1: a mechanism that publishes one record in n as it is would pass; choose a smaller δ"
    )
    return f"δ = {promised.delta:g}, n = {n}: δ·n = {share:.3g}, {verdict}."


def _accesses(facts: RunFacts) -> str:
    """What looked at the records, and is paid for."""
    prepared = facts.section("preprocessing").get("public")
    before = f" Before it: {prepared}." if isinstance(prepared, str) else ""
    shared = " The run drew on a budget that several runs share." if facts.config.get("budget") else ""
    return (
        f"Every noisy sum of this training run.{before} Not covered: other runs and tuning on the same records.{shared}"
    )


def _released(facts: RunFacts) -> str:
    """How much of the run could be published."""
    output = facts.section("training").get("output") or "the method's own choice"
    made, charged = facts.closing.released, facts.ledger.spending.releases
    return (
        f"The final model ({output} of the iterates) and this folder outside private/. The guarantee covers all "
        f"{made} releases made ({charged} charged), and so every iterate on the way."
    )


def _proof(facts: RunFacts) -> list[Item]:
    """Who counted, and on which assumptions."""
    guarantee = facts.guarantee
    if guarantee is None or not guarantee.holds:
        return [Item("accountant", "Accountant", "None.")]
    kept = [f"{each.text} ({'holds' if each.holds else 'fails'})" for each in guarantee.conditions]
    error = guarantee.error_budget
    numeric = "" if error is None else f" Numerical error in δ: at most {error:.1e}, already counted."
    text = f"{guarantee.accountant}.{numeric} " + ("; ".join(kept) + "." if kept else "")
    drawn = "Batches were drawn by the sampler whose facts were charged, one charge per release, on disk before it."
    return [
        Item("accountant", "Accountant", text.strip()),
        Item("assumptions", "Its assumptions", f"{drawn} {isolation_sentence(facts.closing.isolation)}"),
    ]


def model_card(facts: RunFacts) -> str:
    """The card; what only the operator can say, and did not, stands as such."""
    said = {item.key: item for group in checklist(facts).values() for item in group}
    lines = [
        *_front(said),
        "# Model Card",
        "",
        protected(facts) if facts.promised is not None else f"**No privacy guarantee.** {protected(facts)}",
        "",
        "## Model Details",
        "",
        *_list(said, "model", "features", "target", "method", "statement_contact", "statement_license"),
        "",
        "## Uses",
        "",
        *_list(said, "statement_purpose"),
        "",
        "## Bias, Risks, and Limitations",
        "",
        *_list(said, "statement_groups"),
        *(f"- Not protected: {_plain(text)}" for text in not_protected(facts)),
        "",
        "## How to Get Started with the Model",
        "",
        "```",
        "dpsrm verify RUN && dpsrm predict RUN --data new.csv",
        "```",
        "",
        "## Training Details",
        "",
        *_list(said, "statement_source", "records", "releases", "clips", "normalisation"),
        "",
        "### Privacy",
        "",
        f"- From whom: {from_whom(facts)}",
        *_list(said, "formal", "unit", "adjacency", "delta_against_n", "accountant", "accesses"),
        *_list(said, "statement_other_releases", "statement_tuning"),
        "",
        "## Evaluation",
        "",
        *_list(said, "statement_utility"),
        "",
        "The whole statement: `report.html`, and `statement.json` for machines.",
    ]
    return "\n".join(lines) + "\n"


def _front(said: dict[str, Item]) -> list[str]:
    """The YAML head that a hub reads."""
    license_ = said["statement_license"]
    named = [f"license: {json.dumps(license_.text, ensure_ascii=False)}"] if license_.said else []
    return ["---", "library_name: dpsrm", *named, "tags:", "- differential-privacy", "- pytorch", "---", ""]


def _list(said: dict[str, Item], *keys: str) -> list[str]:
    """Some items as a list; a run may have none of a kind."""
    found = [said[key] for key in keys if key in said]
    return [f"- **{item.name}:** {_plain(item.text)}" for item in found]


def _plain(text: str) -> str:
    """Text of the operator's in one line, so that it stays one item."""
    return " ".join(text.replace("<", "&lt;").split())
