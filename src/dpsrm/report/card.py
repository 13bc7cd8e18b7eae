"""`model_card.md` in the layout of Hugging Face's model cards, from the same facts as the report."""

from __future__ import annotations

import json

from dpsrm.report.checklist import checklist
from dpsrm.report.described import Item
from dpsrm.report.facts import RunFacts
from dpsrm.report.words import from_whom, not_protected, protected


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
