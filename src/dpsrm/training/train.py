"""Train a module with a guarantee: plan, run, close the ledger, write the certificate; or go on after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from dpsrm.accounting.budget import read_budget, reserve
from dpsrm.accounting.position import IN_RUN, need_reserved, write_position
from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.randomness import Streams
from dpsrm.gradients import Layout, PerExampleLoss
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.keys import keep_keys, read_keys
from dpsrm.runs.ledger import Ledger, mend_ledger, read_ledger
from dpsrm.runs.toml import read_toml, write_toml
from dpsrm.training.checkpoint import Checkpoint, read_checkpoint
from dpsrm.training.config import Settings, settings_from, settings_to_dict
from dpsrm.training.identity import identity_of, need_same, record_bytes
from dpsrm.training.loop import Watcher
from dpsrm.training.prepare import Prepared, prepare
from dpsrm.training.session import Run, Session


def train(
    module: nn.Module,
    loss: PerExampleLoss,
    data: Any,
    settings: Settings,
    *,
    out: Path | str,
    overwrite: bool = False,
    watch: Watcher | None = None,
    about: dict[str, Any] | None = None,
) -> Run:
    """Train `module` in place under `settings`, writing the run folder `out`.

    Args:
        module: any nn.Module without layers that mix examples; its parameters with requires_grad are trained.
        loss: (outputs, targets) → one loss per example.
        data: `Records`, a torch Dataset, or a pair of arrays or tensors (inputs, targets).
        settings: the promise, the method, the schedule.
        out: the run folder, which must not exist (or be a run in which no process trains, with `overwrite`).
        watch: called after every step, for progress bars; what it is told under `private` must not be published.
        about: further public facts for config.toml (which file, which preprocessing).

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: everything in the run folder outside `private/` is (ε, δ)-DP as certificate.md says, if
    settings.privacy is given and no seed was.
    """
    prepared = prepare(module, loss, data, settings, Streams.choose(settings.seed))
    folder = RunFolder(Path(out))
    with _begun(prepared, folder, overwrite=overwrite):
        write_toml(folder.config, {**settings_to_dict(settings), **(about or {})})
        folder.write_environment()
        threads = settings.performance.threads_for(prepared.objective.layout.size)
        facts = {**prepared.facts(), "threads": threads, "files": folder.digests(folder.config, folder.environment)}
        session = Session(prepared=prepared, folder=folder, facts=facts)
        if settings.performance.resumable:
            facts["identity"] = identity_of(prepared.objective, prepared.records, prepared.streams)
            keep_keys(folder.keys, prepared.streams)
            session.begin()
        with Ledger(folder.ledger, prepared.plan.header(private_randomness=prepared.streams.private)) as ledger:
            return session.run(ledger, watch=watch)


def resume(run: Path | str, module: nn.Module, loss: PerExampleLoss, data: Any, *, watch: Watcher | None = None) -> Run:
    """Go on with a run that was interrupted, however it was: the result is the one it would have had, bit for bit.

    Args:
        run: the run folder.
        module, loss, data: the same as before; the module's trainable values do not matter, its shapes do.

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: releases that were charged, and perhaps made, after the last checkpoint are made again with the same
    records, θ and noise: no new information, so no new charge. Nothing else ever gets their noise: settings, plan,
    records, module, loss, versions and CPU must be what they were, or `ResumeError` is raised and nothing is released.

    Edge cases: a run killed before its first checkpoint had charged nothing and is refused: start it anew. A finished
    run, whose ledger has its closing line, is refused (and what is left of its key, if it was killed before it was
    destroyed, is destroyed). So is one in whose folder a process trains.
    """
    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise ResumeError(f"a run is a folder; got {str(run)!r}")
    with folder.hold() if folder.private.is_dir() else nullcontext():
        _need_unfinished(folder)
        need_reserved(folder.path)
        session, checkpoint = _reopened(folder, module, loss, data)
        with _ledger(folder, session.prepared, checkpoint) as ledger:
            return session.run(ledger, watch=watch, after=checkpoint)


def _need_unfinished(folder: RunFolder) -> None:
    """Refuse a run that ended, and tidy up after it if it was killed while it did; refuse one that never began."""
    if _closed(folder):
        if folder.private.is_dir():
            mend_ledger(folder.ledger)
            folder.forget()
        raise ResumeError(f"{folder.path} is finished: there is nothing to resume")
    if not folder.checkpoint.exists():
        raise ResumeError(
            f"{folder.path} has no checkpoint: it had not begun, or was not to be resumed; train with overwrite"
        )


def _reopened(folder: RunFolder, module: nn.Module, loss: PerExampleLoss, data: Any) -> tuple[Session, Checkpoint]:
    """The session of an interrupted run, standing where its checkpoint stood."""
    streams = read_keys(folder.keys)
    checkpoint = read_checkpoint(folder.checkpoint, streams, parameters=Layout.of(module).size)
    settings = settings_from(checkpoint.facts["settings"])
    need_same("settings", checkpoint.facts["settings"], _written(folder), "restore config.toml, or train a new run")
    files = folder.digests(folder.config, folder.environment)
    need_same("published files", checkpoint.facts["files"], files, "restore them, or train a new run")
    prepared = prepare(module, loss, data, settings, streams)
    _need_same_run(checkpoint, prepared)
    _restore(prepared, checkpoint)
    return Session(prepared=prepared, folder=folder, facts=checkpoint.facts), checkpoint


@contextmanager
def _begun(prepared: Prepared, folder: RunFolder, *, overwrite: bool) -> Iterator[None]:
    """Make the run folder and hold it; reserve all the run may release, if it shares a budget.

    What the budget would refuse anyway is refused before, so that nothing is overwritten for nothing; a run that it
    refuses afterwards, because another was faster, leaves no folder.
    """
    if prepared.settings.budget is None:
        with folder.create(overwrite=overwrite):
            yield
        return
    path, spending, run = Path(prepared.settings.budget), prepared.plan.reserved, folder.path.resolve()
    found = read_budget(path, near=[run])
    data = found.digest(record_bytes(prepared.records))
    found.need_room(spending, data)
    with folder.create(overwrite=overwrite):
        try:
            position = reserve(path, spending, run=str(run), data=data)
        except DpsrmError:
            shutil.rmtree(folder.path)
            raise
        write_position(folder.path / IN_RUN, position)
        yield


def _closed(folder: RunFolder) -> bool:
    """Whether the run's ledger has its closing line."""
    try:
        return read_ledger(folder.ledger, torn=True).closed
    except DpsrmError:
        return False


def _written(folder: RunFolder) -> dict[str, Any]:
    """The settings in the run's config.toml."""
    return settings_to_dict(settings_from(read_toml(folder.config)))


def _need_same_run(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Refuse to replay noise on anything else."""
    then, identity = checkpoint.facts, identity_of(prepared.objective, prepared.records, prepared.streams)
    need_same("number of records", then["plan"]["n"], prepared.plan.n, "give the data of that run")
    need_same("plan", then["plan"], prepared.facts()["plan"], "train a new run")
    need_same("machine", then["identity"]["machine"], identity["machine"], "resume where it ran, or train a new run")
    need_same("module and loss", then["identity"]["module"], identity["module"], "give those of that run")
    need_same("data", then["identity"]["records"], identity["records"], "give the data of that run")


def _restore(prepared: Prepared, checkpoint: Checkpoint) -> None:
    """Put walk and output where they stood."""
    try:
        prepared.walk.load_state_dict(checkpoint.walk)
        prepared.output.load_state_dict(checkpoint.output)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ResumeError(f"the checkpoint is of another method or step rule: {error}") from error


def _ledger(folder: RunFolder, prepared: Prepared, checkpoint: Checkpoint) -> Ledger:
    """The run's ledger, to be gone on with; a run killed before it had one gets it now."""
    header = prepared.plan.header(private_randomness=prepared.streams.private)
    if not folder.ledger.exists() and not checkpoint.made.charges:
        return Ledger(folder.ledger, header)
    return Ledger.reopen(folder.ledger, header, after=checkpoint.ledger)
