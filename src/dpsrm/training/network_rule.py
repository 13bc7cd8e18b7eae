"""How a network that nobody tuned is trained: noise-corrected Adam, its rate from the number of parameters and steps.

Fitted on public images and tables (docs/decisions/defaults.md); no record of the user's is looked at.
"""

from __future__ import annotations

import math

from dpsrm.core.errors import need
from dpsrm.methods import Sgd
from dpsrm.training.settings import Training

REACH = 6.0
"""η·√(T·P) for two classes: how far noise alone carries θ, in the units of Adam's steps."""
UNKNOWN_REACH = 10.0
"""The same where the number of classes is not known: a module of the user's."""
CLIP, NUMBERS_CLIP = 3.0, 0.3
"""C1: a smaller one cuts off so much that probabilities are wrong though classes are right."""
PASSES, LEAST_STEPS, MOST_STEPS = 10, 300, 3000
LEAST_BATCH, MOST_BATCH, PARTS = 512, 8192, 32


def network_training(*, n: int, parameters: int, classes: int | None = None) -> tuple[Sgd, Training]:
    """Method and schedule of a network.

    Adam divides by the size of what it is fed, and where noise rules that is the noise: T steps of rate η then carry
    each of P parameters η·√T far, whatever ε is, and θ by η·√(T·P). So that product is fixed and T is free: about ten
    passes in batches of a 32nd of the records, which is cheap and large enough that sampling adds little.

    Args:
        parameters: P, how many numbers are trained.
        classes: how many there are; 0 for a number to predict, whose residuals, in [-2, 2], want a smaller clip;
            None if nobody knows.

    Guarantee: a function of its arguments, which are public. The accountant proves ε for whatever is chosen.

    >>> network_training(n=60_000, parameters=26_010)[1].steps
    320
    """
    batch = network_batch(n)
    steps = network_steps(n, batch)
    rate = network_rate(steps, parameters, classes)
    training = Training(batch=batch, steps=steps, learning_rate=rate, optimizer="dp-adam", output="tail")
    return Sgd(max_grad_norm=NUMBERS_CLIP if classes == 0 else CLIP), training


def network_batch(n: int) -> int:
    """A 32nd of the records, at least 512 and at most 8192."""
    return min(n, MOST_BATCH, max(LEAST_BATCH, n // PARTS))


def network_steps(n: int, batch: int) -> int:
    """Ten passes, at least 300 steps and at most 3000."""
    return min(MOST_STEPS, max(LEAST_STEPS, round(PASSES * n / batch)))


def network_rate(steps: int, parameters: int, classes: int | None = None) -> float:
    """The learning rate of noise-corrected Adam, at most .1."""
    need(steps >= 1 and parameters >= 1, "there must be a step and a parameter", steps=steps, parameters=parameters)
    reach = UNKNOWN_REACH if classes is None else REACH * math.sqrt(max(1.0, classes / 2))
    return float(f"{min(0.1, reach / math.sqrt(steps * parameters)):.2g}")
