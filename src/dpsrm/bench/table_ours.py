"""Our side of the benchmark of tables: the rule, the grid whose best point is the oracle, and a model without privacy.

Losses: log-loss, or the mean squared error of targets in [-1, 1]; errors: the share of wrong classes, or 1 - R².
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dpsrm.accounting.guarantee import gaussian_mu
from dpsrm.bench.public_tables import PublicTable
from dpsrm.core.errors import need_extra
from dpsrm.data import Records, SparseRecords
from dpsrm.methods import Method, Sgd
from dpsrm.training import Performance, Privacy, Settings, Training, loss_for, run_trials
from dpsrm.training.defaults import NETWORK, FlowRule, default_training, ruled
from dpsrm.training.network_rule import network_training
from dpsrm.training.predict import class_probabilities
from dpsrm.training.settings import Model

DELTA = 1e-5
FACTORS = (0.25, 0.5, 1.0, 2.0)
"""η·T·C1 ÷ (n·μ) of the grid for classes."""
NUMBER_FACTORS = (0.1, 0.25, 0.5)
"""The same for numbers, where the clip is chosen, too."""
MOST = 1500
ADAM = {True: ((0.03, 100), (0.03, 400), (0.1, 100), (0.1, 400), (0.3, 400)), False: ((0.01, 400), (0.03, 100))}
"""(learning rate, steps) of the grid's noise-corrected Adam, for classes and for numbers."""

Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TableTrial:
    """A way to train a linear model, or a network of one hidden layer."""

    label: str
    method: Method
    training: Training
    network: bool = False


def scores(table: PublicTable, answers: npt.NDArray[Any]) -> Found:
    """Loss and error of probabilities (n, K), or of numbers (n,), on the held-out records."""
    y = table.targets[1]
    if table.classes:
        chosen = np.clip(answers[np.arange(len(y)), y], 1e-6, None)
        return {"loss": _rounded(-np.log(chosen).mean()), "error": _rounded((answers.argmax(axis=1) != y).mean())}
    mse = float(((np.clip(answers, -1, 1) - y) ** 2).mean())
    return {"loss": _rounded(mse), "error": _rounded(mse / float(y.var()))}


def _rounded(value: float) -> float:
    """Five digits are enough, and make a small file."""
    return float(f"{value:.5g}")


def rule_choice(table: PublicTable, epsilon: float) -> TableTrial:
    """What the library chooses by itself."""
    method, training = default_training(
        n=table.n, epsilon=epsilon, delta=DELTA, classes=table.classes, kind="logistic" if table.classes else "linear"
    )
    return TableTrial(label="rule", method=method, training=training)


def network_choice(table: PublicTable) -> TableTrial:
    """What the library chooses by itself for the network of `PrivateMLPClassifier` and `PrivateMLPRegressor`."""
    size = Model(kind=NETWORK).size(features=table.encoded[0].shape[1], classes=table.classes)
    method, training = network_training(n=table.n, parameters=size, classes=table.classes)
    return TableTrial(label="network", method=method, training=training, network=True)


def grid(table: PublicTable, epsilon: float) -> Iterator[TableTrial]:
    """The points whose best is the oracle: step sizes and lengths, clips for numbers, and noise-corrected Adam."""
    signal = table.n * gaussian_mu(epsilon, DELTA)
    if table.classes:
        rules = [FlowRule(rate=r, clip=1.0, flow=f, power=0.0, most=9.0) for r in (8.0, 2.0) for f in FACTORS]
    else:
        rules = [
            FlowRule(rate=1.0, clip=c, flow=f, power=0.0, most=9.0) for c in (0.15, 0.4, 1.0) for f in NUMBER_FACTORS
        ]
    batch = ruled(rules[0], n=table.n, signal=signal, classes=table.classes).batch
    for rule in rules:
        training = ruled(rule, n=table.n, signal=signal, classes=table.classes)
        training = replace(training, steps=min(MOST, training.steps or MOST))
        label = f"sgd {rule.rate:g} {rule.clip:g} x {rule.flow:g}"
        yield TableTrial(label=label, method=Sgd(max_grad_norm=rule.clip), training=training)
    for rate, steps in ADAM[bool(table.classes)]:
        adam = Training(batch=batch, steps=steps, learning_rate=rate, optimizer="dp-adam", output="tail")
        clip = 1.0 if table.classes else 0.4
        yield TableTrial(label=f"adam {rate:g} {steps}", method=Sgd(max_grad_norm=clip), training=adam)


def finer(table: PublicTable, epsilon: float) -> Iterator[TableTrial]:
    """Further points between and beyond those of the grid: does a harder search beat the rule by more?"""
    signal = table.n * gaussian_mu(epsilon, DELTA)
    rates, clips = ((4.0, 8.0), (0.5, 1.0)) if table.classes else ((0.5, 1.0), (0.1, 0.25))
    for rate, clip, flow in product(rates, clips, (0.15, 0.35, 0.7, 1.4)):
        rule = FlowRule(rate=rate, clip=clip, flow=flow, power=0.0, most=9.0)
        training = ruled(rule, n=table.n, signal=signal, classes=table.classes)
        training = replace(training, steps=min(MOST, training.steps or MOST))
        label = f"sgd {rate:g} {clip:g} x {flow:g}"
        yield TableTrial(label=label, method=Sgd(max_grad_norm=clip), training=training)


def trial(table: PublicTable, choice: TableTrial, epsilon: float, *, seed: int) -> Found:
    """One seeded run and what it is worth on the held-out records."""
    stream = np.random.default_rng(0)
    kind = NETWORK if choice.network else "logistic" if table.classes else "linear"
    module = Model(kind=kind).build(features=table.encoded[0].shape[1], classes=table.classes, stream=stream)
    settings = Settings(
        privacy=Privacy(epsilon=epsilon, delta=DELTA),
        method=choice.method,
        training=choice.training,
        performance=Performance(threads=1),
        seed=seed,
    )
    start = time.process_time()
    records = records_of(table, dense=choice.network)
    (result,) = run_trials(module, loss_for(table.classes), records, [settings])
    seconds = round(time.process_time() - start, 2)
    nn.utils.vector_to_parameters(result.theta.float(), module.parameters())
    return {**scores(table, answers_of(module, table)), "steps": choice.training.steps, "seconds": seconds}


def records_of(table: PublicTable, *, dense: bool = False) -> Records | SparseRecords:
    """The records to train on."""
    y = torch.from_numpy(np.array(table.targets[0], dtype=np.int64 if table.classes else np.float32))
    records = Records(torch.from_numpy(table.encoded[0]), y)
    return records if dense else SparseRecords.of(records)


@torch.no_grad()
def answers_of(module: nn.Module, table: PublicTable) -> npt.NDArray[Any]:
    """Probabilities, or numbers, of the held-out records."""
    outputs = module(torch.from_numpy(table.encoded[1]))
    return class_probabilities(outputs) if table.classes else outputs.squeeze(1).numpy()


def majority(table: PublicTable) -> Found:
    """What a model without features reaches: the training records' class frequencies, or their mean."""
    y, n = table.targets[0], len(table.targets[1])
    if not table.classes:
        return scores(table, np.full(n, y.mean()))
    return scores(table, np.tile(np.bincount(y, minlength=table.classes) / len(y), (n, 1)))


def not_private(table: PublicTable) -> Found:
    """scikit-learn's linear model of the same features, hardly regularised."""
    need_extra("sklearn", extra="sklearn")
    from sklearn.linear_model import LogisticRegression, Ridge

    start = time.process_time()
    (train, test), y = table.encoded, table.targets[0]
    if table.classes:
        answers = LogisticRegression(C=100.0, max_iter=300, tol=1e-3).fit(train, y).predict_proba(test)
    else:
        answers = Ridge(alpha=0.01).fit(train, y).predict(test)
    return {**scores(table, answers), "seconds": round(time.process_time() - start, 2)}
