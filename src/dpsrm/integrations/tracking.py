"""Callbacks that write what may be published, step by step, to TensorBoard or MLflow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dpsrm.core.errors import need_extra
from dpsrm.training import Progress


def _numbers(progress: Progress, *, private: bool) -> dict[str, float]:
    """ε and ‖v‖, functions of what was released, and what callbacks measured; the operator's numbers if asked for."""
    numbers = {"epsilon": progress.epsilon, "direction_norm": progress.direction_norm, **progress.metrics}
    if private:
        numbers["private/loss"] = progress.private.loss
        numbers |= {f"private/clipped_{i}": share for i, share in enumerate(progress.private.clipped)}
    return numbers


class _Tracker:
    """Writes every so many updates."""

    def __init__(self, *, every: int, private: bool) -> None:
        """`private` also writes exact functions of private records: loss and shares of clipped examples."""
        self._every, self._private = every, private

    def due(self, step: int, steps: int) -> bool:
        """Whether it is time."""
        return step % self._every == 0 or step == steps

    def __call__(self, progress: Progress) -> None:
        """Write, if it is time or something was measured."""
        if progress.metrics or self.due(progress.step, progress.steps):
            self._write(progress.step, _numbers(progress, private=self._private))

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        """Write the numbers of one update."""
        raise NotImplementedError


class TensorBoard(_Tracker):
    """Writes to a TensorBoard folder.

    Args:
        folder: where TensorBoard looks; not the run folder, which is closed over its own files.
        every: updates between two entries (ε takes the accountant some milliseconds each time).
        private: also write exact functions of private records; such a folder must not be published.
    """

    def __init__(self, folder: Path | str, *, every: int = 10, private: bool = False) -> None:
        """Open the folder."""
        super().__init__(every=every, private=private)
        need_extra("tensorboard", extra="tracking")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        """One scalar each."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class MLflow(_Tracker):
    """Writes to the active MLflow run (or a new one).

    Args:
        every, private: as for `TensorBoard`.
    """

    def __init__(self, *, every: int = 10, private: bool = False) -> None:
        """Find mlflow."""
        super().__init__(every=every, private=private)
        need_extra("mlflow", extra="tracking")
        self._mlflow: ModuleType = import_module("mlflow")

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        """All at once."""
        self._mlflow.log_metrics(numbers, step=step)
