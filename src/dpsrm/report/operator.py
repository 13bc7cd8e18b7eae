"""What `private/` keeps of a training, and its `report.html`: measures, curves, advice. For the operator alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from dpsrm.report.facts import METRICS, read_private_json
from dpsrm.report.page import Axis, Chart, Curve, Markup, Points, around, page, section, table, tag
from dpsrm.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Journal:
    """The curves of a run against its steps; empty where nothing was written.

    Attributes:
        clipped: by part of the query, the share of examples whose contribution was scaled down.
        signal: estimated size of the noiseless sum ÷ size of the noise, from what was released.
        nonfinite: examples that were left out because their gradient was no number.
        metrics: by model ("test", "reference") and measure; `half_width` likewise.
    """

    loss: Points = field(default_factory=list)
    clipped: Mapping[str, Points] = field(default_factory=dict)
    signal: Points = field(default_factory=list)
    direction: Points = field(default_factory=list)
    nonfinite: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


def read_journal(folder: RunFolder) -> Journal:
    """Read `private/`; what a resumed run wrote twice counts once, the last."""
    lines = _lines(folder)
    clipped: dict[str, list[tuple[float, float]]] = {}
    for step, line in lines.items():
        for name, share in zip(line.get("parts", []), line["private"]["clipped"], strict=False):
            clipped.setdefault(str(name), []).append((float(step), float(share)))
    return Journal(
        loss=[(float(step), float(line["private"]["loss"])) for step, line in lines.items()],
        clipped=clipped,
        signal=[(float(step), _signal(line)) for step, line in lines.items() if line.get("noise_norm")],
        direction=[(float(step), float(line["direction_norm"])) for step, line in lines.items()],
        nonfinite=sum(int(line["private"]["nonfinite"]) for line in lines.values()),
        metrics=read_private_json(folder, "metrics.json"),
    )


def recent(points: Sequence[tuple[float, float]]) -> float:
    """The mean over the second half; NaN if there is nothing."""
    values = [y for _, y in points[len(points) // 2 :] if math.isfinite(y)]
    return fmean(values) if values else math.nan


def smoothed(points: Points, *, window: int = 9) -> Points:
    """A running mean, so that a noisy curve can be read."""
    half = window // 2
    pieces = ([y for _, y in points[max(0, k - half) : k + half + 1] if math.isfinite(y)] for k in range(len(points)))
    return [(x, fmean(near)) for (x, _), near in zip(points, pieces, strict=True) if near]


def _signal(line: dict[str, Any]) -> float:
    """√(‖sum + noise‖² − E‖noise‖²) ÷ √E‖noise‖², 0 where noise hides all."""
    noise, heard = float(line["noise_norm"]), float(line["release_norm"])
    return math.sqrt(max(heard * heard - noise * noise, 0.0)) / noise


def _lines(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """The journal's lines by step, in their order; a torn last line is left out."""
    path = folder.private / "progress.jsonl"
    found = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        found[int(line["step"])] = line
    return dict(sorted(found.items()))


_CLIP = {"gradient": "max_grad_norm", "gradient difference": "max_diff_norm", "recursive gradient": "joint_norm"}
"""Which setting bounds a part of the query."""


def operator_page(journal: Journal) -> str:
    """The page; everything in it may be an exact function of private records."""
    return page(
        "Training report, not for publication",
        tag("h1", "Training report"),
        tag(
            "p",
            "For the operator’s eyes only: exact figures on private records. Publish ../report.html instead.",
            class_="bad",
        ),
        section("Advice", tag("ul", *(tag("li", text) for text in advice(journal))), name="advice"),
        _utility(journal),
        _curves(journal),
        note="Choices made by looking at these figures are not covered by the run's guarantee.",
    )


def advice(journal: Journal) -> list[str]:
    """What the curves say to do; each sentence names the setting."""
    found = []
    for part, points in journal.clipped.items():
        share, setting = recent(points), _CLIP.get(part, "max_grad_norm")
        if share > 0.9:
            found.append(
                f"{share:.0%} of the examples are clipped ({part}): raise {setting}; so much clipping biases the steps."
            )
        elif share < 0.02:
            found.append(
                f"Hardly any example is clipped ({part}, {share:.1%}): lower {setting}; the noise falls with it."
            )
    signal = recent(journal.signal)
    if signal < 0.1:
        found.append(
            f"The noise is {1 / max(signal, 0.01):.0f} times the signal or more: take larger "
            "batches, fewer steps, a smaller model, or a larger ε."
        )
    losses = [loss for _, loss in smoothed(journal.loss) if math.isfinite(loss)]
    if len(losses) > 20 and losses[-1] > 1.05 * min(losses):
        found.append(
            "The loss rises again towards the end: lower training.learning_rate, let it decay, or train fewer steps."
        )
    if len(losses) > 20 and losses[-1] < 0.97 * losses[-len(losses) // 5]:
        found.append(
            "The loss still falls at the end: more steps may help; each adds to the noise that the same ε needs."
        )
    if journal.nonfinite:
        found.append(
            f"{journal.nonfinite} gradients were not finite and counted as zero: look at the inputs and the loss."
        )
    if not journal.metrics:
        found.append(
            "No test records were given: --test FILE measures the model, --reference trains a non-private one too."
        )
    return found or ["Nothing stands out."]


def _utility(journal: Journal) -> Markup:
    """Measures on the test records with 95 % intervals, beside the reference."""
    models = [name for name in ("test", "reference", "constant") if name in journal.metrics]
    if not models:
        return Markup("")
    heads = {"test": "private model", "reference": "non-private reference", "constant": "always the same answer"}
    rows = []
    for key, words in METRICS.items():
        if all(journal.metrics[name].get(key) is not None for name in models):
            rows.append((words, *(_interval(journal, name, key) for name in models)))
    caption = "On the test records, ± 95 % confidence"
    return section("Utility", table(caption, ("measure", *(heads[name] for name in models)), rows), name="utility")


def _interval(journal: Journal, model: str, key: str) -> str:
    """A measure with half the width of its interval, if that is known."""
    half = journal.metrics.get(f"{model}_half_width", {}).get(key)
    return f"{journal.metrics[model][key]:.4f}" + ("" if half is None else f" ± {half:.4f}")


def _curves(journal: Journal) -> Markup:
    """How training went."""
    if not journal.loss:
        return section("Curves", tag("p", "The run kept no journal."), name="curves")
    share = {part: smoothed(points) for part, points in journal.clipped.items()}
    figures = [
        _chart("loss", "Loss of the batches", {"loss": smoothed(journal.loss)}, "loss"),
        _chart("clipped", "Examples that were clipped", share, "share", top=1.0),
        _chart("signal", "Signal ÷ noise of the releases", {"estimate": smoothed(journal.signal)}, "ratio", zero=True),
        _chart("norms", "Size of the direction", {"‖v‖": smoothed(journal.direction)}, "norm", zero=True),
    ]
    return section("How training went", tag("div", *figures, class_="charts"), name="curves")


def _chart(
    name: str, title: str, curves: Mapping[str, Points], label: str, *, zero: bool = False, top: float | None = None
) -> Markup:
    """One figure against the steps, or nothing."""
    shown = {key: points for key, points in curves.items() if points}
    if not shown:
        return Markup("")
    values = [y for points in shown.values() for _, y in points]
    low, high = (0.0, top) if top is not None else around(values, zero=zero)
    ends = "; ".join(f"{key} ends at {points[-1][1]:.3g}" for key, points in shown.items())
    steps = max(points[-1][0] for points in shown.values())
    chart = Chart(
        name=name,
        title=title,
        alternative=f"{title} against steps, running mean: {ends}.",
        x=Axis(label="step", low=0.0, high=max(steps, 1.0)),
        y=Axis(label=label, low=low, high=high),
        curves=[Curve(name=key, points=points) for key, points in shown.items()],
    )
    return chart.render()
