"""Defaults from public numbers: method, batch, steps and learning rate of a model that nobody tuned; and their limits.

Defaults were fitted on public tables (docs/decisions/defaults.md) and look at no record of the user's. Where none can
help, the operator is told so in log lines, which change nothing in the run and are not published; those that look at
records say so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from torch import nn

from dpsrm.accounting.guarantee import gaussian_mu
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency
from dpsrm.data import Records, RecordSource, SparseRecords
from dpsrm.gradients import Objective, binary_loss, multiclass_loss
from dpsrm.methods import Method, Sgd, method_class
from dpsrm.training.config import Settings
from dpsrm.training.network_rule import network_training
from dpsrm.training.settings import Privacy, Training

_log = logging.getLogger(__name__)

LEAST_STEPS, MOST_STEPS = 64, 4000
NETWORK, OWN_MODULE = "mlp", "own"
"""Kinds of models that the rule for networks is for: the command line's, and any module of the user's."""


@dataclass(frozen=True, kw_only=True)
class FlowRule:
    """How a linear model is trained: flow time η·T = `flow`·classes^`power`·n·μ/`clip`, in steps of size `rate`.

    Args:
        rate: the largest step that is stable for records of norm 1: 2 ÷ the loss's curvature.
        clip: C1; the noise that enters θ is in proportion to η·T·C1.
        most: η·T·C1 ÷ (n·μ) is at most this, whatever the number of classes.
    """

    rate: float
    clip: float
    flow: float
    power: float
    most: float


RULES = {
    "logistic": FlowRule(rate=8.0, clip=1.0, flow=0.5, power=0.5, most=2.0),
    "linear": FlowRule(rate=1.0, clip=0.25, flow=0.25, power=0.0, most=2.0),
}
"""One linear layer with the logistic or softmax loss, and with the squared loss of targets in [-1, 1]."""


def default_training(
    *,
    n: int,
    epsilon: float,
    delta: float,
    classes: int,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    kind: str = "logistic",
) -> tuple[Method, Training]:
    """What to train a linear model of the command line with when nobody says.

    Noise and progress of a linear model depend on the flow time η·T alone, so: steps as large as are stable for records
    of norm 1 or less, a batch large enough that sampling adds little, and η·T in proportion to n·μ, which fixes the
    noise that enters θ on the way. Where that leaves fewer than 64 steps, 64 smaller ones. The number of features is
    not asked: noise in a logit is noise per coordinate times ‖x‖, and ‖x‖ is 1 for any number of them.

    Guarantee: a function of its arguments, which are public. The accountant proves ε for whatever is chosen.

    >>> default_training(n=32561, epsilon=1.0, delta=1e-5, classes=2)[1].steps
    771
    """
    enough = classes >= 2 or (classes == 0 and kind != "logistic")
    need(n >= 1 and enough, "there must be a record and two classes", n=n, classes=classes)
    reach = 2.0 if adjacency is Adjacency.ADD_REMOVE else 1.0  # one record moves a sum by C instead of 2C
    signal = reach * n * gaussian_mu(epsilon, delta)
    rule = RULES[kind]
    return Sgd(max_grad_norm=rule.clip), ruled(rule, n=n, signal=signal, classes=classes)


def ruled(rule: FlowRule, *, n: int, signal: float, classes: int) -> Training:
    """The schedule that a rule for linear models gives; `signal` is n·μ, doubled under add/remove."""
    flow = min(rule.most, rule.flow * max(1, classes) ** rule.power) * signal / rule.clip
    steps = min(MOST_STEPS, max(LEAST_STEPS, round(flow / rule.rate)))
    rate = float(f"{min(rule.rate, flow / LEAST_STEPS):.3g}")
    return Training(batch=default_batch(n, max(2, classes)), steps=steps, learning_rate=rate, output="tail")


def default_batch(n: int, classes: int) -> int:
    """2048 records for two classes, fewer for more, whose steps cost more and whose noise hides more of the sampling.

    >>> [default_batch(n, classes) for n, classes in ((300, 2), (40_000, 2), (40_000, 26))]
    [300, 2048, 512]
    """
    return min(n, max(512, 4096 // classes))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is public about the data and the model."""

    n: int
    classes: int
    kind: str
    parameters: int = 1


def applies(settings: Settings, kind: str) -> bool:
    """Whether the user left method and schedule out, and there is a rule for such a model and promise.

    There is none without privacy, in theory mode, with a fixed noise, or under an accountant that covers only some
    schedules.
    """
    promise = settings.privacy
    if promise is None or settings.theory is not None or not settings.left_out:
        return False
    known = kind in (*RULES, NETWORK, OWN_MODULE)
    return known and promise.noise_multiplier is None and promise.accountant in ("pld", "rdp")


def with_defaults(settings: Settings, shape: Shape) -> Settings:
    """The settings, with method and schedule chosen where the rule applies."""
    promise = settings.privacy
    if promise is None or not applies(settings, shape.kind):
        return settings
    method, training = _for_shape(shape, promise)
    return replace(settings, method=method, training=training)


def _for_shape(shape: Shape, promise: Privacy) -> tuple[Method, Training]:
    """The rule for the kind of model."""
    if shape.kind in (NETWORK, OWN_MODULE):
        classes = None if shape.kind == OWN_MODULE else shape.classes
        return network_training(n=shape.n, parameters=shape.parameters, classes=classes)
    return default_training(
        n=shape.n,
        epsilon=promise.epsilon,
        delta=promise.delta,
        classes=shape.classes,
        adjacency=promise.adjacency,
        kind=shape.kind,
    )


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user of an estimator chose; None leaves it to the rule."""

    steps: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    max_grad_norm: float | None = None
    method: str | Method | None = None
    regulariser: float = 0.0


def choose(settings: Settings, shape: Shape, choices: Choices) -> Settings:
    """The settings by the rule, with the user's choices in place of the rule's."""
    ruled_ = with_defaults(settings, shape)
    names = ("steps", "batch", "learning_rate")
    given = {name: getattr(choices, name) for name in names if getattr(choices, name) is not None}
    training = replace(ruled_.training, **given, regulariser=choices.regulariser)
    method = ruled_.method if choices.method is None else choices.method
    clip = {} if choices.max_grad_norm is None else {"max_grad_norm": choices.max_grad_norm}
    found = method_class(method)(**clip) if isinstance(method, str) else replace(cast(Any, method), **clip)
    return replace(ruled_, method=found, training=training)


def explained(before: Settings, after: Settings, shape: Shape) -> str | None:
    """One line that says what was chosen and why; None if nothing was."""
    if after.training is before.training or after.privacy is None:
        return None
    t, promise = after.training, after.privacy
    passes = (t.steps or 0) * (t.batch or 0) / shape.n
    network = shape.kind in (NETWORK, OWN_MODULE)
    size = f"{shape.parameters} parameters" if network else f"ε = {promise.epsilon:g}, δ = {promise.delta:g}"
    limit = "Larger steps" if network else "More steps"
    other = "method= and training= of Settings" if shape.kind == OWN_MODULE else "--set or --method"
    return (
        f"Chosen from n = {shape.n}, {size} alone: {after.method.name}, "
        f"{t.steps} steps of {t.batch} records ({passes:.3g} passes), learning rate {t.learning_rate:g}"
        f"{'' if t.optimizer == 'constant' else f' of {t.optimizer}'}, "
        f"{t.output} average. {limit} would add more noise than they learn; {other} choose otherwise."
    )


def chosen_for_module(settings: Settings, n: int, parameters: int) -> Settings:
    """The settings, with method and schedule chosen for a module of the user's if neither was given."""
    shape = Shape(n=n, classes=0, kind=OWN_MODULE, parameters=parameters)
    found = with_defaults(settings, shape)
    line = explained(settings, found, shape)
    if line is not None:
        _log.warning("%s", line)
    return found


LEAST = 100.0
"""The public n·ε below which a run is told to expect nothing. Measured with the default settings on an easy table (one
column of three decides; error 16 % at best, 39 % for the most common class): logistic models had errors of 32 to 53 %
at n·ε = 30, 23 to 44 % at 100, 16 to 32 % at 300; networks learn later."""

UNSCALED, LARGE = 100.0, 10.0
"""The norm of a record that a linear model, and the mean square of features that a network, cannot use any more."""

READ_FROM_RECORDS = "(this line was read from the records: it is for your eyes, not for publication)"


def tell_expectations(objective: Objective, rows: RecordSource, privacy: Privacy | None, *, n: int) -> None:
    """Tell the operator, by log lines, when little can be expected of a run; the run is the same without them.

    Args:
        rows: the records, row by row.
        n: how many of what is protected there are: records, or units.

    The first three look at public numbers: δ ≥ 1/n, one record, and n·ε < `LEAST`. The others look at the records of a
    classifier and say so: one class only, and features of a linear model that are far longer than any clip.
    """
    if privacy is not None:
        _tell_budget(n, privacy)
    if not isinstance(rows, (Records, SparseRecords)):
        return
    classifier = objective.loss in (binary_loss, multiclass_loss)
    if classifier and len(rows) > 1 and bool((rows.targets == rows.targets[0]).all()):
        _log.warning(
            "all records have the class %d: expect a model that always says so; %s",
            int(rows.targets[0]),
            READ_FROM_RECORDS,
        )
    _tell_scale(rows, linear=isinstance(objective.module, nn.Linear))


def _tell_scale(records: Records | SparseRecords, *, linear: bool) -> None:
    """Tell of features far from any scale."""
    if isinstance(records, SparseRecords):
        norms, features = np.sqrt(records.matrix.power(2).sum(axis=1)), records.matrix.shape[1]
    else:
        rows = records.inputs.flatten(1)
        norms, features = rows.norm(dim=1).numpy(force=True) if rows.is_floating_point() else np.zeros(1), rows.shape[1]
    if (norm := float(norms.max())) > (UNSCALED if linear else LARGE * features**0.5):
        _log.warning(
            "the longest record has norm %.3g; a %s learns best from %s about 1: expect a poor one%s; "
            "divide the features by their public ranges, or each record by its norm; %s",
            norm,
            *(("linear model", "norms", "") if linear else ("network", "numbers", " unless it scales them itself")),
            READ_FROM_RECORDS,
        )


def _tell_budget(n: int, privacy: Privacy) -> None:
    """What n records, ε and δ let expect: public numbers."""
    if privacy.delta >= 1 / n:
        _log.warning(
            "delta = %g is not below 1/n = %.3g: publishing one of the %d records as it is keeps such a promise, too; "
            "choose a delta well below 1/n, for instance %.0e",
            privacy.delta,
            1 / n,
            n,
            0.1 / n,
        )
    if n == 1:
        _log.warning("there is one record, and the promise is to hide it: expect a model that has learned nothing")
    elif n * privacy.epsilon < LEAST:
        _log.warning(
            "n times epsilon is %.3g, below %g: expect about what always saying the most common class (or the "
            "middle of a range) gives, or worse; use more records or a larger epsilon",
            n * privacy.epsilon,
            LEAST,
        )
