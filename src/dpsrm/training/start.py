"""Open the folder of a new run, or the folder of one that was interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dpsrm.accounting.budget_file import read_budget, reserve
from dpsrm.accounting.position import IN_RUN, need_reserved, write_position
from dpsrm.core.chain import GENESIS
from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.events import Spending
from dpsrm.core.files import read_toml, write_toml
from dpsrm.core.randomness import Streams
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.keys import keep_keys, read_keys
from dpsrm.runs.ledger import Ledger, mend_ledger, read_ledger
from dpsrm.training.checkpoint import (
    Checkpoint,
    bytes_of,
    pack_checkpoint,
    read_checkpoint,
    unpack_checkpoint,
    write_checkpoint,
)
from dpsrm.training.config import Settings, settings_from, settings_to_dict
from dpsrm.training.identity import identity_of, need_same, record_bytes
from dpsrm.training.lending import Lending
from dpsrm.training.prepare import Prepared
from dpsrm.training.ranks import strategy
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.strategy import Strategy
from dpsrm.training.targets import tell_expectations

States = tuple[dict[str, Any], dict[str, Any]]
Preparer = Callable[[Settings, Streams], Prepared]
"""From settings and streams to a run that could begin."""


def begin(
    settings: Settings,
    prepare: Preparer,
    out: Path,
    *,
    overwrite: bool = False,
    about: dict[str, Any] | None = None,
    lending: Lending | None = None,
) -> RecordedRun:
    """A new run in the folder `out`, which is held until the run is closed.

    Args:
        prepare: checks everything and plans; called before anything is written.
        about: further public facts for config.toml.
        lending: the ranks' way to each other's shards, if the module is sharded.
    """
    ranks = strategy(lending)
    streams = ranks.streams(Streams.choose(settings.seed))
    with ranks.together():
        prepared = prepare(settings, streams)
        identity = identity_of(prepared.objective, prepared.records, streams) if _identified(settings, ranks) else {}
    ranks.need_same(**{"settings and plan": json.dumps(prepared.facts()), "start": bytes_of(prepared.walk.theta).hex()})
    ranks.need_same(**{name: json.dumps(value) for name, value in identity.items()})
    folder = RunFolder(out)
    with ExitStack() as held:
        states = _states(prepared)
        with ranks.together():
            ledger, first = None, b""
            if ranks.leader:
                facts = {**prepared.facts(), "threads": prepared.threads, "shares": ranks.ranks, "identity": identity}
                ledger, first = _opened(prepared, folder, facts, held, states=states, overwrite=overwrite, about=about)
        facts = unpack_checkpoint(ranks.tell(first), streams, "the leader's word").facts
        book = ranks.book(ledger, prepared.plan.header(private_randomness=streams.private))
        return RecordedRun(prepared, folder, book, facts=facts, held=held.pop_all())


def _identified(settings: Settings, ranks: Strategy) -> bool:
    """Whether anybody will compare what data and module are."""
    return settings.performance.resumable or ranks.ranks > 1


def _opened(
    prepared: Prepared,
    folder: RunFolder,
    facts: dict[str, Any],
    held: ExitStack,
    *,
    states: States,
    overwrite: bool,
    about: dict[str, Any] | None,
) -> tuple[Ledger, bytes]:
    """Make the folder with all a run begins with; its ledger, and its first checkpoint."""
    settings, streams = prepared.settings, prepared.streams
    tell_expectations(prepared.objective, prepared.records, settings.privacy)
    held.enter_context(_made(prepared, folder, overwrite=overwrite))
    write_toml(folder.config, {**settings_to_dict(settings), **(about or {})})
    folder.write_environment()
    facts = {**facts, "files": folder.digests(folder.config, folder.environment)}
    first = _first(facts, prepared, states)
    if settings.performance.resumable:
        keep_keys(folder.keys, streams)
        write_checkpoint(folder.checkpoint, first, streams)
    header = prepared.plan.header(private_randomness=streams.private)
    return held.enter_context(Ledger(folder.ledger, header)), pack_checkpoint(first, streams)


def reopen(path: Path, prepare: Preparer, *, parameters: int, lending: Lending | None = None) -> RecordedRun:
    """An interrupted run where its last checkpoint stood, with the folder held; `ResumeError` if it cannot be.

    Args:
        prepare: as in `begin`; it must lead to the very same run.
        parameters: how many numbers the module trains, which limits the size of a checkpoint.
        lending: as in `begin`.
    """
    ranks, folder = strategy(lending), RunFolder(path)
    with ExitStack() as held:
        with ranks.together():
            own, packed = _found(folder, held, parameters) if ranks.leader else (None, b"")
        streams = ranks.streams(own)
        checkpoint = unpack_checkpoint(ranks.tell(packed), streams, f"the checkpoint {folder.checkpoint}")
        with ranks.together():
            prepared = prepare(settings_from(checkpoint.facts["settings"]), streams)
            _need_same_run(checkpoint, prepared)
            prepared.restore(checkpoint.walk, checkpoint.output)
        with ranks.together():
            ledger = held.enter_context(_ledger(folder, prepared, checkpoint)) if ranks.leader else None
        book = ranks.book(ledger, prepared.plan.header(private_randomness=streams.private))
        return RecordedRun(prepared, folder, book, facts=checkpoint.facts, held=held.pop_all(), after=checkpoint)


def _found(folder: RunFolder, held: ExitStack, parameters: int) -> tuple[Streams, bytes]:
    """Hold the folder of an interrupted run; its key, and its last checkpoint."""
    if not folder.path.is_dir():
        raise ResumeError(f"a run is a folder; got {str(folder.path)!r}")
    if folder.private.is_dir():
        held.enter_context(folder.hold())
    _need_unfinished(folder)
    need_reserved(folder.path)
    streams = read_keys(folder.keys)
    checkpoint = read_checkpoint(folder.checkpoint, streams, parameters=parameters)
    _need_same_files(folder, checkpoint)
    return streams, pack_checkpoint(checkpoint, streams)


@contextmanager
def _made(prepared: Prepared, folder: RunFolder, *, overwrite: bool) -> Iterator[None]:
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
    unit = None if prepared.settings.privacy is None else prepared.settings.privacy.unit
    found.need_room(spending, data, unit=unit)
    with folder.create(overwrite=overwrite):
        try:
            position = reserve(path, spending, run=str(run), data=data, unit=unit)
        except DpsrmError:
            shutil.rmtree(folder.path)
            raise
        write_position(folder.path / IN_RUN, position)
        yield


def _need_unfinished(folder: RunFolder) -> None:
    """Refuse a run that ended, and tidy up after it if it was killed while it did; refuse one that never began."""
    if is_closed(folder):
        if folder.private.is_dir():
            mend_ledger(folder.ledger)
            folder.destroy_key()
        raise ResumeError(f"{folder.path} is finished: there is nothing to resume")
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


def _states(prepared: Prepared) -> States:
    """The whole states of walk and output."""
    return prepared.walk.state_dict(), prepared.strategy.whole_state(prepared.output.state_dict())


def _first(facts: dict[str, Any], prepared: Prepared, states: States) -> Checkpoint:
    """The checkpoint before there is a ledger."""
    return Checkpoint(
        facts=facts,
        released=Spending.of([], adjacency=prepared.plan.spending.adjacency),
        ledger=(0, GENESIS),
        walk=states[0],
        output=states[1],
    )


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
    need_same("module and loss", then["identity"]["module"], identity["module"], "give those of that run")
    need_same("data", then["identity"]["records"], identity["records"], "give the data of that run")


def _ledger(folder: RunFolder, prepared: Prepared, checkpoint: Checkpoint) -> Ledger:
    """The run's ledger, to be gone on with; a run killed before it had one gets it now."""
    header = prepared.plan.header(private_randomness=prepared.streams.private)
    if not folder.ledger.exists() and not checkpoint.released.charges:
        return Ledger(folder.ledger, header)
    return Ledger.reopen(folder.ledger, header, after=checkpoint.ledger)
