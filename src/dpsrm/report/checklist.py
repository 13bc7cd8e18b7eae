"""Everything a report must say, item by item, and the model card that is made of the same items.

Some items come from the guarantee, the others describe the run: its numbers, its model, whom one must trust, what the
operator says. The list is that of Ponomareva et al. 2023 (arXiv 2303.00654, §5.3) and NIST SP 800-226.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsrm.accounting.guarantee import gaussian_mu, rounded_down, rounded_up
from dpsrm.core.events import Adjacency
from dpsrm.report.facts import RunFacts, from_whom, not_protected, protected
from dpsrm.runs.certificate import isolation_sentence, read_words


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
    but = f" that agree in {read_words(facts.closing)}" if facts.closing.read else ""
    return (
        f"For all {relation} neighbours D, D′{but} and all sets S of outcomes: "
        f"P(M(D) ∈ S) ≤ e^{rounded_up(promised.epsilon, 4)} · P(M(D′) ∈ S) + {rounded_up(promised.delta)}."
    )


def _guarantee(facts: RunFacts) -> list[Item]:
    """What is promised, about whom, and what was looked at."""
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
        Item("adjacency", "Neighbouring datasets", _neighbours(facts)),
        Item("delta_against_n", "δ against 1/n", _delta_words(facts)),
        Item("accesses", "Accesses covered", _accesses(facts)),
        Item("released", "What is released", _released(facts)),
    ]


def _neighbours(facts: RunFacts) -> str:
    """Which two datasets cannot be told apart."""
    relation, thing = facts.ledger.header.adjacency, facts.thing
    whole = "" if facts.ledger.header.unit is None else ", with all its rows,"
    if relation is Adjacency.REPLACE_ONE:
        rows = "" if not whole else ", with any rows, more or fewer"
        return f"Replace-one: one {thing}{whole} is exchanged for any other{rows}; the number of {thing}s is public."
    if relation is Adjacency.ADD_REMOVE:
        known = f"the number of {thing}s set the sampling rate and is public"
        return f"Add-remove: one {thing}{whole} is added or left out; {known}."
    raise AssertionError(relation)


def _delta_words(facts: RunFacts) -> str:
    """δ beside the number of records, or units."""
    promised, n = facts.promised, facts.records
    if promised is None or n is None:
        return "Does not apply."
    share = promised.delta * n
    verdict = (
        "well below 1: it does not leave room for a mechanism that publishes somebody's record as it is"
        if share <= 0.5
        else "not well below 1: a mechanism that publishes one record in n as it is would pass; choose a smaller δ"
    )
    return f"δ = {rounded_up(promised.delta)}, n = {n}: δ·n = {rounded_up(share, 3)}, {verdict}."


def _accesses(facts: RunFacts) -> str:
    """What looked at the records, and is paid for."""
    prepared = facts.section("preprocessing").get("public")
    before = f" Before it: {prepared}." if isinstance(prepared, str) else ""
    shared = " The run drew on a budget that several runs share." if facts.config.get("budget") else ""
    read = f" Read from the records and not covered: {read_words(facts.closing)}." if facts.closing.read else ""
    others = "Not covered: other runs and tuning on the same records."
    chosen = " and every noisy choice" if facts.ledger.header.filter_rho is not None else ""
    return f"Every noisy sum{chosen} of this training run.{before}{read} {others}{shared}"


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
    numeric = "" if error is None else f" Numerical error in δ: at most {rounded_up(error, 2)}, already counted."
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
        ("" if facts.promised is not None else "**No privacy guarantee.** ") + _plain(protected(facts)),
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


@dataclass(frozen=True)
class Item:
    """One item of the checklist; `said` is False where only the operator could say it and did not."""

    key: str
    name: str
    text: str
    said: bool = True


def native(facts: RunFacts) -> list[Item]:
    """Noise, sampling, clips, normalisation, number of releases."""
    method = facts.section("method")
    found = []
    for number, (event, count) in enumerate(facts.gaussians):
        drawn, suffix = event.sampling, f"_{number + 1}" if number else ""
        text = (
            f"{count} releases with noise multiplier {rounded_down(event.noise_multiplier)} (std ÷ sensitivity), "
            f"batches of {drawn.batch} of {drawn.population} {facts.thing}s ({drawn.scheme.value}), "
            f"rate {drawn.rate:.4g}."
        )
        found.append(Item(f"releases{suffix}", "Releases", text))
    if facts.ledger.header.filter_rho is not None:
        text = f"Chosen as the run went, within a zCDP filter of ρ = {rounded_up(facts.ledger.header.filter_rho)}."
        found.append(Item("filter", "Releases", text))
    clips = {name: method[name] for name in ("max_grad_norm", "max_diff_norm", "joint_norm") if name in method}
    words = ", ".join(f"{name} {value:g}" for name, value in clips.items() if isinstance(value, (int, float)))
    found.append(Item("clips", "Clip norms", f"{words}." if words else "None named; see config.toml."))
    promised = facts.promised
    if promised is not None and promised.epsilon > 0:
        mu = gaussian_mu(promised.epsilon, promised.delta)
        found.append(
            Item("mu", "As one Gaussian", f"(ε, δ) is what one Gaussian release with μ = {rounded_up(mu, 4)} costs.")
        )
    normal = "Sums are divided by the public, expected batch size; the size of a drawn batch is never used."
    return [*found, Item("normalisation", "Normalisation", normal)]


def model(facts: RunFacts) -> list[Item]:
    """Which model of what, from which data."""
    chosen, method, table = facts.section("model"), facts.section("method"), facts.section("preprocessing")
    shapes = [f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in facts.tensors.items()]
    size = sum(math.prod(shape) for shape in facts.tensors.values())
    kind = f"{chosen['kind']}; " if "kind" in chosen else ""
    listed = ", ".join(shapes[:8]) + (f" and {len(shapes) - 8} more" if len(shapes) > 8 else "")
    return [
        Item("model", "Model", f"{kind}{size} numbers in {len(shapes)} tensors: {listed}."),
        Item("method", "Method", f"{method.get('name', '?')}; settings in config.toml, [method] and [training]."),
        Item("features", "Features", _features(table)),
        Item("target", "Target", _target(table)),
        _counted(facts),
    ]


def _counted(facts: RunFacts) -> Item:
    """How many there are of what is protected."""
    n, unit = facts.records, facts.ledger.header.unit
    if unit is not None:
        return Item("records", "Units", f"{n} (public, see above), of whose rows at most {unit.rows} count at a time.")
    return Item("records", "Records", "Not in the ledger." if n is None else f"{n} (public, see above).")


def _features(table: Mapping[str, Any]) -> str:
    """Which columns the model sees."""
    columns = table.get("columns")
    if not columns:
        return (
            f"{table['features']} numbers." if "features" in table else "Tensors, prepared by the operator's program."
        )
    names = list(columns)
    listed = ", ".join(map(str, names[:40])) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    return f"{len(names)} columns: {listed}. Encoded as {table.get('features', '?')} numbers."


def _target(table: Mapping[str, Any]) -> str:
    """What is predicted."""
    if table.get("task") == "regression":
        return f"{table.get('target', 'a number')}, within {table.get('target_range')}."
    classes = ", ".join(map(str, table.get("classes", [])))
    return f"{table.get('target', 'the label')}: {classes}." if classes else "Defined by the operator's program."


def trust(facts: RunFacts) -> list[Item]:
    """Whom one must believe what; where numbers and machines end the proof."""
    secret = facts.ledger.header.private_randomness
    generator = (
        "ChaCha20, keyed by the operating system; the key was destroyed when the run ended."
        if secret
        else "A fixed seed: reproducible, NOT private. Whoever knows the seed can remove the noise."
    )
    return [
        Item("trust", "Who must be trusted", "The operator (curator) and the program. Not the readers of this folder."),
        Item("query_model", "Queries and budget", f"One run, {_planned(facts)}; no queries are answered later."),
        Item("generator", "Random numbers", generator),
        Item(
            "floating_point",
            "Floating point",
            "Bounds hold with rounding included (margins are proved); noise is made of several normals or rounded to a "
            "grid, so that last bits tell little. No formal proof covers every bit.",
        ),
        Item("timing", "Timing", "Not protected: how long the run took, and what its machine showed to others."),
        Item(
            "keys",
            "Keys and folder",
            "The key and private/ were readable by their owner alone while the run went on. private/ holds exact "
            "figures and must not be published.",
        ),
    ]


def _planned(facts: RunFacts) -> str:
    """When it was decided what would be released."""
    if facts.ledger.header.filter_rho is not None:
        return "whose releases were chosen as it went, within a limit fixed before it began"
    return "planned before it began" + (" and stopped before its end" if facts.closing.planned else "")


UNSAID = "Not stated by the operator."


_ASKED = (
    ("purpose", "Purpose"),
    ("source", "Where the data comes from, and how it was collected"),
    ("other_releases", "Other releases of the same data"),
    ("tuning", "Tuning on the same data"),
    ("utility", "Utility, with its uncertainty"),
    ("groups", "Groups for whom it is worse"),
    ("contact", "Contact"),
    ("license", "License"),
)


def said_by_operator(facts: RunFacts) -> list[Item]:
    """The [statement] section of the config."""
    section = facts.section("statement")
    found = []
    for key, name in _ASKED:
        text = section.get(key)
        said = isinstance(text, str) and bool(text.strip())
        found.append(Item(f"statement_{key}", name, str(text) if said else UNSAID, said))
    return found
