"""One job of the command line: load, train, evaluate, and perhaps a non-private reference beside it.

Under torchrun: join the other ranks, let one speak, and go on after a restart.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Column
from torch import nn

from dpsrm.accounting.guarantee import rounded_up
from dpsrm.cli.show import err, going_on, out
from dpsrm.core.errors import need
from dpsrm.core.files import read_toml
from dpsrm.core.secret import Streams
from dpsrm.data import Loaded
from dpsrm.report import write_private_report
from dpsrm.runs.folder import RunFolder
from dpsrm.training import (
    Callback,
    Model,
    Progress,
    Run,
    Settings,
    classification_metrics,
    half_widths,
    loss_for,
    regression_metrics,
    resume,
    train,
)
from dpsrm.training.ranks import strategy

_PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another that is alive but says nothing; a dead one is noticed at once."""


CONSTANT = "constant"
"""What always giving the same answer would achieve, among the measures: a model should do better."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What to train on, and where the results go."""

    records: Loaded
    test: Loaded | None
    model: Model
    settings: Settings
    about: dict[str, Any]
    out: Path
    overwrite: bool
    reference: bool
    moved: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished job; `metrics` are exact functions of the test records: for the operator's eyes only."""

    run: Run
    metrics: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        guarantee = self.run.guarantee
        plan = self.run.plan
        return {
            "epsilon": self.run.epsilon,
            "delta": None if guarantee is None else guarantee.delta,
            "accountant": None if guarantee is None else guarantee.accountant,
            "noise_multiplier": plan.noise_multiplier,
            "n": plan.n,
            "unit": None if plan.privacy is None else plan.privacy.unit,
            "rows_per_unit": None if plan.privacy is None else plan.privacy.rows_per_unit,
            "batch": plan.schedule.batch,
            "steps": plan.schedule.steps,
            "run": str(self.run.folder.path),
            "head": self.run.head,
            **self.metrics,
        }


def run_job(job: TrainingJob, *, resuming: bool = False) -> Outcome:
    """Train (or go on training), evaluate on the test records, write `private/metrics.json`."""
    title = "private" if job.settings.privacy else "not private"
    start = "resume" if resuming else how_to_start(job.out, job.settings)
    need(start != "finished", "the run was finished before this restart", run=str(job.out), remedy="nothing is left")
    job = replace(job, overwrite=True) if start == "again" else job
    with going_on():
        run = _resume(job, title) if start == "resume" else _train(job, job.settings, job.out, title)
    tested = {} if job.test is None else {"test": run.module}
    if job.reference:
        plain = replace(job.settings, privacy=None, budget=None)
        reference = _train(job, plain, run.folder.private / "reference", "reference")
        if job.test is not None:
            tested["reference"] = reference.module
    if not strategy().leader:
        return Outcome(run=run, metrics={})
    metrics = {name: _measured(module, job.test) for name, module in tested.items() if job.test is not None}
    if metrics and job.test is not None:
        metrics[CONSTANT] = _measured(_Constant(job.test), job.test)
        spread = {name: _measured(module, job.test, spread=True) for name, module in tested.items()}
        found = {**metrics, **{f"{name}_half_width": each for name, each in spread.items()}}
        finite = {name: {k: None if math.isnan(v) else v for k, v in m.items()} for name, m in found.items()}
        run.folder.write_json(run.folder.private / "metrics.json", finite)
    write_private_report(run.folder)
    return Outcome(run=run, metrics=metrics)


def _module(job: TrainingJob) -> nn.Module:
    """The model the job names, with its first values."""
    stream = Streams.choose(job.settings.seed).initialisation
    return job.model.build(features=job.records.n_features, classes=len(job.records.classes), stream=stream)


def _resume(job: TrainingJob, title: str) -> Run:
    """The rest of an interrupted training, with a progress bar."""
    epsilon = None if job.settings.privacy is None else job.settings.privacy.epsilon
    with progress_bar(title, epsilon=epsilon) as bar:
        loss, records = loss_for(len(job.records.classes)), job.model.records(job.records)
        unit = job.records.units
        return resume(job.out, _module(job), loss, records, callbacks=[bar], unit=unit, moved=job.moved)


def _train(job: TrainingJob, settings: Settings, out: Path, title: str) -> Run:
    """One training with a progress bar."""
    epsilon = None if settings.privacy is None else settings.privacy.epsilon
    with progress_bar(title, epsilon=epsilon) as bar:
        return train(
            _module(job),
            loss_for(len(job.records.classes)),
            job.model.records(job.records),
            settings,
            out=out,
            overwrite=job.overwrite,
            callbacks=[bar],
            about=job.about,
            unit=None if settings.privacy is None else job.records.units,
        )


class _Constant(nn.Module):
    """Always the same answer: the shares of the classes among the test records, or the mean of their numbers."""

    def __init__(self, loaded: Loaded) -> None:
        """Look at the labels."""
        super().__init__()
        targets = loaded.records.targets
        if loaded.target_range is None:
            counts = torch.bincount(targets.long(), minlength=len(loaded.classes)).double()
            self._answer = (counts / counts.sum()).clamp(min=1e-9).log()
        else:
            self._answer = targets.double().mean().reshape(1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The answer, once per record."""
        return self._answer.expand(len(inputs), -1)


@torch.no_grad()
def _measured(module: nn.Module, loaded: Loaded, *, spread: bool = False) -> dict[str, float]:
    """Log-loss, 0/1 error and AUC; or R², RMSE and MAE of numbers, clamped to their public range like all targets.

    With `spread`: half the width of each one's 95 % confidence interval.
    """
    records, numbers = loaded.records, loaded.target_range
    outputs = module(records.inputs.flatten(1))
    if numbers is None:
        if spread:
            return half_widths(classification_metrics, outputs, records.targets)
        return classification_metrics(outputs, records.targets)
    pair = [numbers.unscaled(x.numpy()) for x in (outputs.squeeze(1), records.targets)]
    return half_widths(regression_metrics, *pair) if spread else regression_metrics(*pair)


_EVERY = 0.5
"""Seconds between two looks: ε of what was released takes the accountant some milliseconds each time."""


@contextmanager
def progress_bar(title: str, *, epsilon: float | None) -> Iterator[Callback]:
    """A live bar, from the first step on: step, loss, ‖v‖ and ε spent of ε allowed.

    The loss is the exact one of the step's batch at the θ of the step, so it is for the operator's eyes only; the model
    that is handed out may be an average of many θ.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
    )  # in a narrow window the bar gives way, not the numbers
    bar = Bar(*columns, console=err)
    try:
        yield _Shown(bar, bar.add_task(title, total=None, facts=""), epsilon)
    finally:
        bar.stop()


class _Shown:
    """Shows where a training stands, every so often."""

    def __init__(self, bar: Bar, task: Any, epsilon: float | None) -> None:
        """Look as soon as there is something."""
        self._bar, self._task, self._epsilon, self._next = bar, task, epsilon, 0.0

    def due(self, step: int, steps: int) -> bool:
        """Whether it is time, or the end."""
        return step == steps or time.monotonic() >= self._next

    def __call__(self, progress: Progress) -> None:
        """Show it, if it is time."""
        if not self.due(progress.step, progress.steps):
            return
        spent, allowed = (
            ("∞", "∞") if self._epsilon is None else (rounded_up(progress.epsilon, 4), f"{self._epsilon:g}")
        )
        facts = f"batch loss {progress.private.loss:.4f}  ‖v‖ {progress.direction_norm:.3g}  ε {spent} of {allowed}"
        self._bar.update(self._task, completed=progress.step, total=progress.steps, facts=facts)
        self._bar.start()
        self._next = time.monotonic() + _EVERY


@contextmanager
def joined() -> Iterator[None]:
    """Be one of the ranks that torchrun started, if it did; all but rank 0 are silent."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield
        return
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] != "0":
        out.quiet = err.quiet = True
        logging.getLogger("dpsrm").setLevel(logging.ERROR)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def how_to_start(folder: Path, settings: Settings) -> str:
    """Whether the run in `folder` is new, to be resumed, to be begun again or finished; the same on all ranks.

    A run is only ever gone on with here if torchrun restarted a rank: otherwise a folder that exists is refused.
    """
    from dpsrm.training.ranks import strategy

    ranks = strategy()
    again = ranks.any(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)
    return ranks.tell((_state_of(RunFolder(folder), settings) if again else "new").encode()).decode()


def _state_of(folder: RunFolder, settings: Settings) -> str:
    """What to do after a restart: "new" (there is no run, or none of ours), "resume", "finished", or "again".

    "again" is for a run that was stopped before its first checkpoint: only if nothing was charged yet.
    """
    from dpsrm.training.config import settings_from, settings_to_dict
    from dpsrm.training.reopen import is_closed

    if not folder.path.exists():
        return "new"
    if not folder.checkpoint.exists() and not is_closed(folder):
        return "new" if folder.ledger.exists() else "again"
    written = settings_to_dict(settings_from(read_toml(folder.config)))
    if written != settings_to_dict(settings):
        return "new"
    return "finished" if is_closed(folder) else "resume"


def new_out(run: Path | None, name: str, *, overwrite: bool) -> Path:
    """The folder of a new run, named or by default; one that is there already is refused before any data is read.

    A rank that torchrun restarted finds its own folder there, and ranks beside the first have none: they ask later.
    """
    out = run if run is not None else default_out(name)
    first = os.environ.get("RANK", "0") == "0" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    need(
        overwrite or not first or not out.exists(),
        "the run folder must not exist yet",
        out=str(out),
        remedy="choose another --out, go on with that run by --resume if it was interrupted, or --overwrite it "
        "(what it spent stays spent)",
    )
    return out


def need_budget(file: str | None) -> None:
    """Refuse a shared budget that is not there, before any data is read; ranks beside the first may not have it."""
    need(
        file is None or os.environ.get("RANK", "0") != "0" or Path(file).exists(),
        "no such budget",
        budget=file,
        remedy="make it: dpsrm budget init FILE --epsilon … --delta …",
    )


def default_out(name: str) -> Path:
    """A run folder that does not exist yet, named after the data and the time; under torchrun, when that started.

    A rank that is restarted finds the folder of its run by that name.
    """
    when = datetime.now()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        when = _started(os.getppid()) or when
    return Path("runs") / f"{name}-{when:%Y%m%d-%H%M%S}"


def _started(process: int) -> datetime | None:
    """When a process of this machine started, where Linux says so."""
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return datetime.fromtimestamp(int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
