"""Items of the checklist that describe the run: its numbers, its model, whom one must trust, what the operator says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsrm.accounting.gaussian import gaussian_mu
from dpsrm.report.facts import RunFacts


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
            f"{count} releases with noise multiplier {event.noise_multiplier:.6g} (std ÷ sensitivity), batches of "
            f"{drawn.batch} of {drawn.population} records ({drawn.scheme.value}), rate {drawn.rate:.4g}."
        )
        found.append(Item(f"releases{suffix}", "Releases", text))
    if facts.ledger.header.filter_rho is not None:
        text = f"Chosen as the run went, within a zCDP filter of ρ = {facts.ledger.header.filter_rho:.6g}."
        found.append(Item("filter", "Releases", text))
    clips = {name: method[name] for name in ("max_grad_norm", "max_diff_norm", "joint_norm") if name in method}
    words = ", ".join(f"{name} {value:g}" for name, value in clips.items() if isinstance(value, (int, float)))
    found.append(Item("clips", "Clip norms", f"{words}." if words else "None named; see config.toml."))
    promised = facts.promised
    if promised is not None and promised.epsilon > 0:
        mu = gaussian_mu(promised.epsilon, promised.delta)
        found.append(Item("mu", "As one Gaussian", f"(ε, δ) is what one Gaussian release with μ = {mu:.4g} costs."))
    normal = "Sums are divided by the public, expected batch size; the size of a drawn batch is never used."
    return [*found, Item("normalisation", "Normalisation", normal)]


def model(facts: RunFacts) -> list[Item]:
    """Which model of what, from which data."""
    chosen, method, table = facts.section("model"), facts.section("method"), facts.section("preprocessing")
    shapes = [f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in facts.tensors.items()]
    size = sum(math.prod(shape) for shape in facts.tensors.values())
    kind = f"{chosen['kind']}; " if "kind" in chosen else ""
    listed = ", ".join(shapes[:8]) + (f" and {len(shapes) - 8} more" if len(shapes) > 8 else "")
    n = facts.records
    return [
        Item("model", "Model", f"{kind}{size} numbers in {len(shapes)} tensors: {listed}."),
        Item("method", "Method", f"{method.get('name', '?')}; settings in config.toml, [method] and [training]."),
        Item("features", "Features", _features(table)),
        Item("target", "Target", _target(table)),
        Item("records", "Records", "Not in the ledger." if n is None else f"{n} (public, see above)."),
    ]


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
        Item("query_model", "Queries and budget", "One run, planned before it began; no queries are answered later."),
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
