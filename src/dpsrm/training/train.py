"""Train a module with a guarantee: open the folder of a new run, and loop around the step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from dpsrm.accounting.budget_file import read_budget, reserve
from dpsrm.accounting.position import IN_RUN, write_position
from dpsrm.core.errors import DpsrmError
from dpsrm.core.events import Spending
from dpsrm.core.files import GENESIS, write_toml
from dpsrm.core.secret import Streams
from dpsrm.data.datasets import ON_DISK
from dpsrm.gradients import Layout, ModelLosses, PerExampleLoss
from dpsrm.mechanisms.sum_log import SumLog, begin_sums
from dpsrm.runs.folder import RunFolder, keep_keys
from dpsrm.runs.ledger import Ledger
from dpsrm.training.ahead import ReadAhead
from dpsrm.training.checkpoint import (
    Checkpoint,
    bytes_of,
    identity_of,
    pack_checkpoint,
    record_bytes,
    unpack_checkpoint,
    write_checkpoint,
)
from dpsrm.training.config import Settings, settings_to_dict
from dpsrm.training.defaults import tell_expectations
from dpsrm.training.lending import Lending
from dpsrm.training.prepare import Prepared, prepare, rows_of
from dpsrm.training.ranks import lend, strategy
from dpsrm.training.recorded import RecordedRun, Run
from dpsrm.training.reopen import Preparer, reopen
from dpsrm.training.step import Progress

Callback = Callable[[Progress], object]
"""Called after every update; or, if it has a method `due(step, steps) -> bool`, at least after those for which that is
true. Before anybody looks the disk is waited for: what is seen must never get its noise again for another sum."""

States = tuple[dict[str, Any], dict[str, Any]]


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
            What they are told under `private` must not be published. Each call waits for the disk once; callbacks that
            all look only now and then say so (`Callback`), as those of this package do.
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
    moved: bool = False,
) -> Run:
    """Go on with a run that was interrupted, however it was: the result is the one it would have had, bit for bit.

    Args:
        run: the run folder.
        module, loss, data: the same as before; the module's trainable values do not matter, its shapes do.
        callbacks, unit: as in `train`.
        moved: the folder was moved to another disk, and no other copy of it goes on; otherwise a copy is refused.

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
    size = Layout.of(module).size
    return _to_the_end(reopen(Path(run), preparer, parameters=size, lending=lending, moved=moved), callbacks)


def _to_the_end(run: RecordedRun, callbacks: Sequence[Callback]) -> Run:
    """The loop."""
    on_disk = isinstance(rows_of(run.prepared.records), ON_DISK)
    with run, run.step.running(), ReadAhead(run) if on_disk else nullcontext(lambda: (None, None)) as ahead:
        stopped, watched = False, run.strategy.any(bool(callbacks))
        reading = run.strategy.together if on_disk else nullcontext  # on all ranks alike, or they have been refused
        while not (run.step.done or stopped):
            with run.step.over_records(), reading():
                read = ahead()
            progress = run.advance(*read)
            if progress is not None and watched and run.strategy.any(_due(callbacks, progress)):
                run.settle()
                run.prepared.objective.layout.write(progress.model, progress.theta)
                for callback in callbacks:
                    callback(progress)
                stopped = progress.stopped
            stopped = run.strategy.any(stopped)
        return run.finish()


def _due(callbacks: Sequence[Callback], progress: Progress) -> bool:
    """Whether a callback looks at this update; one that looks at some only has a method `due(step, steps)`."""
    asked = (getattr(callback, "due", lambda *_: True) for callback in callbacks)
    return any(due(progress.step, progress.steps) for due in asked)


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
        compared = settings.performance.resumable or ranks.ranks > 1  # else nobody asks what data and module are
        identity = identity_of(prepared.objective, prepared.records, streams) if compared else {}
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
        path = folder.sums if ranks.leader and settings.performance.resumable else None
        sum_log = SumLog(streams, [], path=path, gathered=ranks.gathered)
        return RecordedRun(prepared, folder, book, facts=facts, held=held.pop_all(), sum_log=sum_log)


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
    records = prepared.records
    tell_expectations(prepared.objective, rows_of(records), settings.privacy, n=len(records))
    held.enter_context(_made(prepared, folder, overwrite=overwrite))
    write_toml(folder.config, {**settings_to_dict(settings), **(about or {})})
    folder.write_environment()
    facts = {**facts, "files": folder.digests(folder.config, folder.environment)}
    first = _first(facts, prepared, states)
    if settings.performance.resumable:
        keep_keys(folder.keys, streams)
        begin_sums(folder.sums)
        write_checkpoint(folder.checkpoint, first, streams)
    header = prepared.plan.header(private_randomness=streams.private)
    return held.enter_context(Ledger(folder.ledger, header)), pack_checkpoint(first, streams)


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
