"""Train a module with a guarantee: plan, run, close the ledger, write the certificate; or go on after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dpsrm.accounting.budget import read_budget, reserve
from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.ledger import Ledger, read_ledger
from dpsrm.core.randomness import Streams
from dpsrm.gradients import Layout, PerExampleLoss
from dpsrm.training.checkpoint import Checkpoint, read_checkpoint
from dpsrm.training.config import Settings, settings_from, settings_to_dict
from dpsrm.training.folder import RunFolder
from dpsrm.training.identity import identity_of, need_same, record_bytes
from dpsrm.training.keys import keep_keys, read_keys
from dpsrm.training.loop import Watcher
from dpsrm.training.prepare import Prepared, prepare
from dpsrm.training.session import Run, Session
from dpsrm.training.toml import read_toml, write_toml


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
        out: the run folder, which must not exist (or be a run, with `overwrite`).
        watch: called after every step, for progress bars; what it is told under `private` must not be published.
        about: further public facts for config.toml (which file, which preprocessing).

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: everything in the run folder outside `private/` is (ε, δ)-DP as certificate.md says, if
    settings.privacy is given and no seed was.
    """
    prepared = prepare(module, loss, data, settings, Streams.choose(settings.seed))
    folder = RunFolder(Path(out))
    with _reservation(prepared, folder):
        folder.create(overwrite=overwrite)
    write_toml(folder.config, {**settings_to_dict(settings), **(about or {})})
    folder.write_environment()
    threads = settings.performance.threads_for(prepared.objective.layout.size)
    facts = {**prepared.facts(), "threads": threads}
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

    Edge cases: a run killed before its first checkpoint had charged nothing and is refused: start it anew. One killed
    after its ledger was closed only gets its certificate. A finished run is refused (and what is left of its key, if
    it was killed while destroying it, is destroyed).
    """
    folder = RunFolder(Path(run))
    if not folder.path.is_dir():
        raise ResumeError(f"a run is a folder; got {str(run)!r}")
    if _closed(folder) and folder.certificate.exists():
        folder.forget()
        raise ResumeError(f"{run} is finished: there is nothing to resume")
    if not folder.checkpoint.exists():
        raise ResumeError(f"{run} has no checkpoint: it had not begun, or was not to be resumed; train with overwrite")
    streams = read_keys(folder.keys)
    checkpoint = read_checkpoint(folder.checkpoint, streams, parameters=Layout.of(module).size)
    settings = settings_from(checkpoint.facts["settings"])
    need_same("settings", checkpoint.facts["settings"], _written(folder), "restore config.toml, or train a new run")
    prepared = prepare(module, loss, data, settings, streams)
    _need_same_run(checkpoint, prepared)
    session = Session(prepared=prepared, folder=folder, facts=checkpoint.facts)
    if _closed(folder):
        return session.certify()
    _restore(prepared, checkpoint)
    with _ledger(folder, prepared, checkpoint) as ledger:
        return session.run(ledger, watch=watch, after=checkpoint)


@contextmanager
def _reservation(prepared: Prepared, folder: RunFolder) -> Iterator[None]:
    """Reserve all the run may release in the shared budget, once the folder was made; a refused run leaves no folder.

    What would be refused anyway is refused before, so that nothing is overwritten for nothing.
    """
    if prepared.settings.budget is None:
        yield
        return
    path, spending = Path(prepared.settings.budget), prepared.plan.reserved
    found = read_budget(path)
    data = found.digest(record_bytes(prepared.records))
    found.need_room(spending, data)
    yield
    try:
        reserve(path, spending, run=str(folder.path.resolve()), data=data)
    except DpsrmError:
        shutil.rmtree(folder.path)
        raise


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
