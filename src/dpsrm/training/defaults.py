"""Defaults from public numbers: method, batch, steps and learning rate of a linear model that nobody tuned.

Fitted on public tables (docs/decisions/defaults.md); no record of the user's is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpsrm.accounting.gaussian import gaussian_mu
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency
from dpsrm.methods import Method, Sgd
from dpsrm.training.config import Settings
from dpsrm.training.settings import Training

LINEAR = "logistic"
"""The kind of model that the rule is for: one linear layer with the logistic or softmax loss."""

RATE = 8.0
"""The largest step that is stable for the logistic loss and records of norm 1: 2 ÷ its curvature of ¼."""
LEAST_STEPS, MOST_STEPS = 64, 4000
MOST_FLOW = 2.0
"""η·T ÷ (n·μ) is √classes/2, but at most this."""


def default_training(
    *,
    n: int,
    epsilon: float,
    delta: float,
    classes: int,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> tuple[Method, Training]:
    """What to train a linear model with when nobody says; for other models the defaults of `Training` hold.

    Noise and progress depend on the flow time η·T alone, so: steps as large as are stable for records of norm 1 or
    less, a batch large enough that sampling adds little, and η·T in proportion to n·μ, which fixes the noise that
    enters θ on the way. Where that leaves fewer than 64 steps, 64 smaller ones. The number of features is not asked:
    noise in a logit is noise per coordinate times ‖x‖, and ‖x‖ is 1 for any number of them.

    Guarantee: a function of its arguments, which are public. The accountant proves ε for whatever is chosen.

    >>> default_training(n=32561, epsilon=1.0, delta=1e-5, classes=2)[1].steps
    771
    """
    need(n >= 1 and classes >= 2, "there must be a record and two classes", n=n, classes=classes)
    reach = 2.0 if adjacency is Adjacency.ADD_REMOVE else 1.0  # one record moves a sum by C instead of 2C
    flow = min(MOST_FLOW, math.sqrt(classes) / 2) * reach * n * gaussian_mu(epsilon, delta)
    steps = min(MOST_STEPS, max(LEAST_STEPS, round(flow / RATE)))
    rate = float(f"{min(RATE, flow / LEAST_STEPS):.3g}")
    return Sgd(), Training(batch=default_batch(n, classes), steps=steps, learning_rate=rate, output="tail")


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


def applies(settings: Settings, kind: str) -> bool:
    """Whether the user left method and schedule out, and there is a rule for such a model and promise.

    There is none without privacy, in theory mode, with a fixed noise, or under an accountant that covers only some
    schedules.
    """
    promise = settings.privacy
    if promise is None or settings.theory is not None or not settings.left_out:
        return False
    return kind == LINEAR and promise.noise_multiplier is None and promise.accountant in ("pld", "rdp")


def with_defaults(settings: Settings, shape: Shape) -> Settings:
    """The settings, with method and schedule chosen where the rule applies."""
    promise = settings.privacy
    if promise is None or not applies(settings, shape.kind):
        return settings
    method, training = default_training(
        n=shape.n,
        epsilon=promise.epsilon,
        delta=promise.delta,
        classes=shape.classes,
        adjacency=promise.adjacency,
    )
    return replace(settings, method=method, training=training)


def explained(before: Settings, after: Settings, n: int) -> str | None:
    """One line that says what was chosen and why; None if nothing was."""
    if after.training is before.training or after.privacy is None:
        return None
    t, promise = after.training, after.privacy
    passes = (t.steps or 0) * (t.batch or 0) / n
    return (
        f"Chosen from n = {n}, ε = {promise.epsilon:g}, δ = {promise.delta:g} alone: {after.method.name}, "
        f"{t.steps} steps of {t.batch} records ({passes:.3g} passes), learning rate {t.learning_rate:g}, "
        f"{t.output} average. More steps would add more noise than they learn; --set or --method choose otherwise."
    )
