"""Train a module with a guarantee: a loop around the step; or go on after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from dpsrm.data.datasets import ON_DISK
from dpsrm.gradients import Layout, ModelLosses, PerExampleLoss
from dpsrm.training.ahead import ReadAhead
from dpsrm.training.config import Settings
from dpsrm.training.prepare import prepare
from dpsrm.training.ranks import lend, strategy
from dpsrm.training.recorded import RecordedRun, Run
from dpsrm.training.start import begin, reopen
from dpsrm.training.step import Progress
from dpsrm.training.targets import rows_of

Callback = Callable[[Progress], object]
"""Called after every update."""


def train(
    module: nn.Module,
    loss: PerExampleLoss | ModelLosses,
    data: Any,
    settings: Settings,
    *,
    out: Path | str,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    about: dict[str, Any] | None = None,
    unit: Any = None,
) -> Run:
    """Train `module` in place under `settings`, writing the run folder `out`.

    Args:
        module: any nn.Module without layers that mix examples; its parameters with requires_grad are trained.
        loss: (model, batch) → one loss per example, if its first parameter is called `model`; otherwise
            (outputs, targets) → one loss per example, for batches (inputs, targets).
        data: `Records`, a torch Dataset, a dictionary of arrays, or a pair of arrays or tensors (inputs, targets).
            Memory-mapped arrays stay on disk: a step reads the records it draws (docs/scaling.md).
        settings: the promise, the method, the schedule.
        out: the run folder, which must not exist (or be a run in which no process trains, with `overwrite`).
        callbacks: called with the `Progress` after every update, the module holding θ; `progress.stop()` ends the run.
            What they are told under `private` must not be published.
        about: further public facts for config.toml (which file, which preprocessing).
        unit: whose each record is, one id (a number or text) per record, if a person is to be protected with all their
            records and not one record: see docs/whose-privacy.md. `Privacy.rows_per_unit` of them count at a time.

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: everything in the run folder outside `private/` is (ε, δ)-DP as certificate.md says, if
    settings.privacy is given and no seed was. A callback that stops the run by looking at private records makes a
    choice that the certificate does not cover.
    """
    lending = lend(module)
    strategy(lending).align(module)
    preparer = partial(prepare, module, loss, data, unit=unit, lending=lending)
    run = begin(settings, preparer, Path(out), overwrite=overwrite, about=about, lending=lending)
    return _to_the_end(run, callbacks)


def resume(
    run: Path | str,
    module: nn.Module,
    loss: PerExampleLoss | ModelLosses,
    data: Any,
    *,
    callbacks: Sequence[Callback] = (),
    unit: Any = None,
) -> Run:
    """Go on with a run that was interrupted, however it was: the result is the one it would have had, bit for bit.

    Args:
        run: the run folder.
        module, loss, data: the same as before; the module's trainable values do not matter, its shapes do.
        callbacks, unit: as in `train`.

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: releases that were charged, and perhaps made, after the last checkpoint are made again with the same
    records, θ and noise: no new information, so no new charge. Nothing else ever gets their noise: settings, plan,
    records, module, loss, versions and CPU must be what they were, or `ResumeError` is raised and nothing is released.

    Edge cases: a run killed before its first checkpoint had charged nothing and is refused: start it anew. A finished
    run, whose ledger has its closing line, is refused (and what is left of its key, if it was killed before it was
    destroyed, is destroyed). So is one in whose folder a process trains, and one of one's own loop: `make_private`
    with resume=True goes on with that.
    """
    lending = lend(module)
    strategy(lending).need_alike(module)
    preparer = partial(prepare, module, loss, data, unit=unit, lending=lending)
    return _to_the_end(reopen(Path(run), preparer, parameters=Layout.of(module).size, lending=lending), callbacks)


def _to_the_end(run: RecordedRun, callbacks: Sequence[Callback]) -> Run:
    """The loop."""
    on_disk = isinstance(rows_of(run.prepared.records), ON_DISK)
    with run, run.step.running(), ReadAhead(run) if on_disk else nullcontext(lambda: (None, None)) as ahead:
        stopped = False
        while not (run.step.done or stopped):
            progress = run.advance(*ahead())
            if progress is not None and callbacks:
                run.prepared.objective.layout.write(progress.model, progress.theta)
                for callback in callbacks:
                    callback(progress)
                stopped = progress.stopped
            stopped = run.strategy.any(stopped)
        return run.finish()
