"""Users' networks untuned: the rule, the settings of before, and a small sweep around the rule, on public images.

    dpsrm bench networks --data-dir DATA --out results/own-networks.jsonl

Every result is one JSON line, written as it comes; a run that is started again does what is missing. One seed each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpsrm.data import Records
from dpsrm.data.images import read_idx_pair
from dpsrm.data.public import image_files
from dpsrm.experiments.networks import cnn4, seeded
from dpsrm.gradients import Layout, multiclass_loss
from dpsrm.methods import Method, Sgd, Srm
from dpsrm.training import Performance, Privacy, Settings, Training, run_trials
from dpsrm.training.network_rule import network_training

DELTA = 1e-5
Row = dict[str, Any]


def _perceptron(hidden: int) -> nn.Module:
    """One hidden layer over pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


@dataclass(frozen=True, kw_only=True)
class NetworkProblem:
    """Images of a set, as many as are trained on, a network and ε."""

    images: str
    n: int
    network: str
    build: Callable[[], nn.Module]
    epsilon: float

    @property
    def name(self) -> str:
        """A name for rows."""
        return f"{self.images} {self.network} n={self.n} eps={self.epsilon:g}"


def _problem(images: str, n: int, network: str, epsilon: float) -> NetworkProblem:
    """A problem of a network's name."""
    builds = {"mlp64": lambda: _perceptron(64), "mlp512": lambda: _perceptron(512), "cnn4": cnn4}
    return NetworkProblem(images=images, n=n, network=network, build=builds[network], epsilon=epsilon)


NETWORK_PROBLEMS = {
    problem.name: problem
    for problem in (
        _problem("mnist", 60_000, "mlp64", 1.0),
        _problem("mnist", 6_000, "mlp64", 1.0),
        _problem("mnist", 20_000, "cnn4", 3.0),
        _problem("fashion-mnist", 20_000, "mlp64", 3.0),
        _problem("mnist", 20_000, "mlp512", 3.0),
    )
}


def choices(problem: NetworkProblem) -> Iterator[tuple[str, Method, Training]]:
    """(name, method, training): the rule, before, and the sweep: rates, lengths, clips, plain steps, DP-SRM."""
    size = Layout.of(problem.build()).size
    method, rule = network_training(n=problem.n, parameters=size)
    yield "rule", method, rule
    rate, steps = rule.learning_rate, rule.steps or 1
    for factor in (1 / 3, 3.0):
        yield f"rate x {factor:.2g}", method, replace(rule, learning_rate=rate * factor)
    for plain in (0.5, 2.0):
        yield f"plain steps {plain:g}", method, replace(rule, optimizer="constant", learning_rate=plain)
    for clip in (1.0, 10.0):
        yield f"clip {clip:g}", Sgd(max_grad_norm=clip), rule
    yield "a third of the steps", method, replace(rule, steps=steps // 3, learning_rate=rate * 3**0.5)
    yield "DP-SRM", Srm(), rule
    yield "before", Srm(), Training()


def run(names: Sequence[str], folder: Path, out: Path) -> list[Row]:
    """Do everything that `out` does not hold yet, and return all its rows."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["problem"], row["choice"]) for row in rows}
    with out.open("a") as file:
        for problem in (NETWORK_PROBLEMS[name] for name in names):
            data = None
            for choice, method, training in choices(problem):
                if (problem.name, choice) not in done:
                    data = data or _images(problem, folder)
                    rows.append({"problem": problem.name, "choice": choice, **_trial(problem, data, method, training)})
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
    return rows


def _images(problem: NetworkProblem, folder: Path) -> tuple[Records, Tensor, Tensor]:
    """Pixels in 0 … 1: n to train on, and the set's test images with their labels."""
    files = image_files(problem.images, folder)
    (pixels, labels), (test, answers) = (read_idx_pair(*files[at : at + 2]) for at in (0, 2))
    some = torch.from_numpy(np.random.default_rng(0).permutation(len(pixels))[: problem.n].copy())
    scaled = [(part.float() / 255).reshape(len(part), 1, 28, 28) for part in (pixels[some], test)]
    return Records(scaled[0], labels[some].long()), scaled[1], answers.long()


def _trial(
    problem: NetworkProblem, data: tuple[Records, Tensor, Tensor], method: Method, training: Training
) -> dict[str, Any]:
    """One seeded run, and its log-loss and error on the test images."""
    records, test, answers = data
    module = seeded(problem.build, 0)
    settings = Settings(
        privacy=Privacy(epsilon=problem.epsilon, delta=DELTA),
        method=method,
        training=training,
        performance=Performance(threads=1),
        seed=0,
    )
    start = time.process_time()
    (result,) = run_trials(module, multiclass_loss, records, [settings])
    seconds = time.process_time() - start
    Layout.of(module).write(module, result.theta)
    with torch.no_grad():
        logits = torch.cat([module(piece) for piece in torch.split(test, 2000)])
    return {
        "parameters": len(result.theta),
        "steps": result.plan.schedule.steps,
        "batch": result.plan.schedule.batch,
        "rate": training.learning_rate,
        "loss": round(float(F.cross_entropy(logits, answers)), 4),
        "error": round(float((logits.argmax(1) != answers).double().mean()), 4),
        "seconds": round(seconds, 1),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line per problem: the losses of before, rule and the best of the sweep, and the rule's share of its gain.

    The gain is over ln 10, the log-loss of a network that knows nothing.
    """
    found = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        loss = {row["choice"]: row["loss"] for row in rows if row["problem"] == name}
        if "rule" in loss:
            best = min(loss, key=lambda choice: loss[choice])
            share = (np.log(10) - loss["rule"]) / (np.log(10) - loss[best])
            line = {"problem": name, "tried": len(loss), "before": loss.get("before"), "rule": loss["rule"]}
            found.append({**line, "best": best, "best_loss": loss[best], "share": round(float(share), 3)})
    return found
