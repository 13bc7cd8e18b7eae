"""Open the folder of an interrupted run where its last checkpoint stood, if all is as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dpsrm.accounting.position import need_reserved
from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.files import read_toml
from dpsrm.core.secret import Streams
from dpsrm.mechanisms.sum_log import SumLog, read_sums
from dpsrm.runs.folder import RunFolder, adopt_keys, need_not_restored, read_keys
from dpsrm.runs.ledger import Ledger, mend_ledger, read_ledger
from dpsrm.training.checkpoint import (
    Checkpoint,
    identity_of,
    need_same,
    pack_checkpoint,
    read_checkpoint,
    unpack_checkpoint,
)
from dpsrm.training.config import Settings, settings_from, settings_to_dict
from dpsrm.training.lending import Lending
from dpsrm.training.prepare import Prepared
from dpsrm.training.ranks import strategy
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.strategy import Strategy

Preparer = Callable[[Settings, Streams], Prepared]
"""From settings and streams to a run that could begin."""


def reopen(
    path: Path, prepare: Preparer, *, parameters: int, lending: Lending | None = None, moved: bool = False
) -> RecordedRun:
    """An interrupted run where its last checkpoint stood, with the folder held; `ResumeError` if it cannot be.

    Args:
        prepare: as in `begin`; it must lead to the very same run.
        parameters: how many numbers the module trains, which limits the size of a checkpoint.
        lending: as in `begin`.
        moved: as in `resume`.
    """
    ranks, folder = strategy(lending), RunFolder(path)
    with ExitStack() as held:
        with ranks.together():
            own, packed = _found(folder, held, parameters, moved) if ranks.leader else (None, b"")
        streams = ranks.streams(own)
        checkpoint = unpack_checkpoint(ranks.tell(packed), streams, f"the checkpoint {folder.checkpoint}")
        with ranks.together():
            prepared = prepare(settings_from(checkpoint.facts["settings"]), streams)
            _need_same_run(checkpoint, prepared)
            prepared.restore(checkpoint.walk, checkpoint.output)
        with ranks.together():
            ledger = held.enter_context(_ledger(folder, prepared, checkpoint)) if ranks.leader else None
        book = ranks.book(ledger, prepared.plan.header(private_randomness=streams.private))
        sum_log = _sum_log(folder, ranks, streams, checkpoint)
        facts = checkpoint.facts
        return RecordedRun(prepared, folder, book, facts=facts, held=held.pop_all(), sum_log=sum_log, after=checkpoint)


def _found(folder: RunFolder, held: ExitStack, parameters: int, moved: bool) -> tuple[Streams, bytes]:
    """Hold the folder of an interrupted run; its key, and its last checkpoint."""
    if not folder.path.is_dir():
        raise ResumeError(f"a run is a folder; got {str(folder.path)!r}")
    if folder.private.is_dir():
        held.enter_context(folder.hold())
    _need_unfinished(folder)
    need_reserved(folder.path)
    streams = read_keys(folder.keys, moved=moved)
    checkpoint = read_checkpoint(folder.checkpoint, streams, parameters=parameters)
    _need_same_files(folder, checkpoint)
    if moved:
        adopt_keys(folder.keys, streams)
        if folder.sums.exists():
            folder.sums.touch()  # the user's word holds for it, too
    elif streams.private:
        need_not_restored(folder.sums)
    return streams, pack_checkpoint(checkpoint, streams)


def _need_unfinished(folder: RunFolder) -> None:
    """Refuse a run that ended, and tidy up after it if it was killed while it did; refuse one that never began."""
    if is_closed(folder):
        if folder.private.is_dir():
            mend_ledger(folder.ledger)
            folder.destroy_key()
        raise ResumeError(f"{folder.path} is finished: nothing is left to resume; dpsrm report shows it")
    if not folder.checkpoint.exists():
        raise ResumeError(
            f"{folder.path} has no checkpoint: it had not begun, or was not to be resumed; train with overwrite"
        )


def is_closed(folder: RunFolder) -> bool:
    """Whether the run's ledger has its closing line."""
    try:
        return read_ledger(folder.ledger, torn=True).closed
    except DpsrmError:
        return False


def _need_same_files(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Refuse to go on under other settings than were published."""
    written = settings_to_dict(settings_from(read_toml(folder.config)))
    need_same("settings", checkpoint.facts["settings"], written, "restore config.toml, or train a new run")
    files = folder.digests(folder.config, folder.environment)
    need_same("published files", checkpoint.facts["files"], files, "restore them, or train a new run")


def _need_same_run(checkpoint: Checkpoint, prepared: Prepared) -> None:
    """Refuse to make noise again on anything else."""
    then, identity = checkpoint.facts, identity_of(prepared.objective, prepared.records, prepared.streams)
    need_same("number of records", then["plan"]["n"], prepared.plan.n, "give the data of that run")
    need_same("plan", then["plan"], prepared.facts()["plan"], "train a new run")
    need_same("machine", then["identity"]["machine"], identity["machine"], "resume where it ran, or train a new run")
    need_same("data", then["identity"]["records"], identity["records"], "give the data of that run")
    need_same("module and loss", then["identity"]["module"], identity["module"], "give those of that run")


def _sum_log(folder: RunFolder, ranks: Strategy, streams: Streams, checkpoint: Checkpoint) -> SumLog:
    """What the run's releases were made of, as far as anybody may have seen them; the leader tells the others."""
    with ranks.together():
        lines = read_sums(folder.sums, released=checkpoint.released.releases) if ranks.leader else []
    told = ranks.tell("\n".join(lines).encode()).decode()
    return SumLog(streams, told.splitlines(), path=folder.sums if ranks.leader else None, gathered=ranks.gathered)


def _ledger(folder: RunFolder, prepared: Prepared, checkpoint: Checkpoint) -> Ledger:
    """The run's ledger, to be gone on with; a run killed before it had one gets it now."""
    header = prepared.plan.header(private_randomness=prepared.streams.private)
    if not folder.ledger.exists() and not checkpoint.released.charges:
        return Ledger(folder.ledger, header)
    return Ledger.reopen(folder.ledger, header, after=checkpoint.ledger)
