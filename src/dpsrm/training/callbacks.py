"""Callbacks for `train`: measure the model on the way, and stop when it no longer gets better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from dpsrm.core.errors import need
from dpsrm.training.step import Progress


class Evaluate:
    """Measures the model every so many updates; callbacks after it in the list see what it measured.

    Args:
        function: (model) → numbers by name. The model is in evaluation mode, without gradients.
        every: updates between two measurements; the last update is always measured.

    Guarantee: none for `function`: numbers measured on private records are exact functions of them. Use public records,
    or ones that need no protection, and keep the rest to yourself.

    Attributes:
        history: (update, numbers) of every measurement.
    """

    def __init__(self, function: Callable[[nn.Module], Mapping[str, float]], *, every: int = 1) -> None:
        """Nothing measured yet."""
        need(every >= 1, "every must be 1 or more updates", every=every)
        self.history: list[tuple[int, dict[str, float]]] = []
        self._function = function
        self._every = every

    def due(self, step: int, steps: int) -> bool:
        """Whether it is time."""
        return step % self._every == 0 or step == steps

    @torch.no_grad()
    def __call__(self, progress: Progress) -> None:
        """Measure, if it is time."""
        if not self.due(progress.step, progress.steps):
            return
        modes = [(each, each.training) for each in progress.model.modules()]  # layers of one model may differ
        progress.model.eval()
        try:
            numbers = {name: float(value) for name, value in self._function(progress.model).items()}
        finally:
            for each, training in modes:
                each.training = training
        self.history.append((progress.step, numbers))
        progress.metrics.update(numbers)


class EarlyStopping:
    """Stops the run when a measured number has not improved for a while.

    Args:
        metric: a number that an `Evaluate` before this callback measures.
        patience: measurements without an improvement to wait for.
        largest: whether larger is better.

    Guarantee: the certificate of a run stopped this way is that of its whole plan: nothing is saved, and nothing is
    claimed, by stopping. It covers the choice of the moment only if `metric` was measured on public records.

    >>> stopping = EarlyStopping("error", patience=1)
    """

    def __init__(self, metric: str, *, patience: int = 3, largest: bool = False) -> None:
        """No best yet."""
        need(patience >= 1, "patience must be 1 or more measurements", patience=patience)
        self.best = math.inf
        self._metric, self._patience, self._sign = metric, patience, -1 if largest else 1
        self._waited = 0

    def due(self, step: int, steps: int) -> bool:
        """Never by itself: whatever measures is due."""
        return False

    def __call__(self, progress: Progress) -> None:
        """Compare, if there is a new measurement."""
        if not progress.metrics:
            return
        known = self._metric in progress.metrics
        need(known, f"no callback before this one measures {self._metric}", measured=sorted(progress.metrics))
        found = self._sign * progress.metrics[self._metric]
        if found < self.best:
            self.best, self._waited = found, 0
            return
        self._waited += 1
        if self._waited >= self._patience:
            progress.stop()
