"""A data loader whose batches are the draws that will be charged."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
)

from dpsrm.core.errors import InputError, need
from dpsrm.core.tree import Ragged, leaves
from dpsrm.data import DatasetRecords, RecordSource, as_records
from dpsrm.gradients import Batch
from dpsrm.gradients.batch import on_device
from dpsrm.training.ahead import ReadAhead
from dpsrm.training.defaults import READ_FROM_RECORDS
from dpsrm.training.drawn import Drawn
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.step import Draw
from dpsrm.training.summing import read
from dpsrm.training.untouched import need_gradients

_log = logging.getLogger(__name__)
_MANY = 4
"""So many shapes of records in a batch are worth a line: each is a pass of its own."""


def records_of(loader: DataLoader[Any]) -> RecordSource:
    """The records behind a loader, with its collate function; refuses a loader that draws in a way of its own."""
    sampler: Any = loader.sampler if type(loader.batch_sampler) in (BatchSampler, type(None)) else loader.batch_sampler
    plain = type(sampler) in (RandomSampler, SequentialSampler) and not getattr(sampler, "replacement", False)
    need(
        plain and loader.batch_size is not None,
        "private batches are drawn by the sampling that is charged, not by a sampler of one's own",
        sampler=type(sampler).__name__,
        remedy="give a DataLoader of a dataset with len and [i], with batch_size and shuffle only",
    )
    own = None if loader.collate_fn is default_collate else loader.collate_fn
    plainly = own is None and isinstance(loader.dataset, Dataset)
    found = as_records(loader.dataset) if plainly else DatasetRecords(loader.dataset, own)  # a list of records, too
    need(
        len(sampler) == len(found),
        "every record is drawn alike, also those that a sampler would leave out",
        sampler=len(sampler),
        records=len(found),
        remedy="leave them out of the dataset: torch.utils.data.Subset(dataset, indices)",
    )
    return found


_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")
"""What of a user's loader decides how records are read, and not which."""


class PrivateLoader:
    """Gives the batches of one pass each time it is gone through, each a fresh draw; `len` says how many.

    A batch must be handed to `step` before the next one is drawn: leaving some out by looking at them would be a choice
    that no accountant covers. One that was drawn and not used, because of an error in the loop, comes again, the very
    same tensors (or, where it changed them, the same numbers), when the loader is gone through anew.

    On ranks every batch is asked for by all of them: a record that cannot be read on one stops all.
    """

    def __init__(self, run: RecordedRun, *, batches: int, like: DataLoader[Any] | None) -> None:
        """Read as `like` reads."""
        self._run = run
        self._batches = batches
        self._device = next(run.prepared.objective.module.parameters()).device
        self._options = {} if like is None else {name: getattr(like, name) for name in _KEPT}
        self.pending: Drawn | None = None
        self._told = False

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        steps, remedy = self._run.prepared.plan.schedule.steps, "plan more epochs in make_private, or finish()"
        need(not self._run.step.done, "all planned releases were made", steps=steps, remedy=remedy)
        return self._pass()

    def _pass(self) -> Iterator[Batch]:
        """The batches of one pass."""
        source, again = self._read(), self._unused()
        for _ in range(self._batches):
            if self._run.step.done:
                return
            need_gradients()
            need(
                again is not None or self._unused() is None,
                "every batch that is drawn must be given to step() before the next is drawn",
                remedy="call step(batch) for each batch of the loader, also for those you would rather leave out",
            )
            with self._run.step.over_records(), self._run.strategy.together():  # no rank leaves before all have heard
                batch = self._kept(*next(source), again)
            again = None
            yield batch

    def _kept(self, draw: Draw, batch: Batch, again: Drawn | None) -> Batch:
        """The batch for the loop, kept as what its step will be made of; one that was given before comes again."""
        if again is None:
            batch = on_device(batch, self._device)
            self._tell(batch)
            self.pending = Drawn.of(draw, batch)
        else:
            batch = again.again
            self.pending = replace(again, given=tuple(leaves(batch)))
        return batch

    def _tell(self, batch: Batch) -> None:
        """Say once that records of many shapes are slow."""
        if not self._told and isinstance(batch, Ragged) and len(batch.groups) > _MANY:
            self._told = True
            _log.warning(
                "a batch has records of %d shapes, and each shape is run by itself, several times slower: pad all "
                "records to one length, in the dataset or in the collate function (docs/own-loop.md); %s",
                *(len(batch.groups), READ_FROM_RECORDS),
            )

    def take(self, batch: Batch) -> Drawn:
        """The draw that `batch` is, with the loader's own copy of it; refuses any other batch."""
        found = self._unused()
        if found is None or not found.is_in(batch):
            raise InputError(
                "step() takes the batch that the loader drew last, unchanged, and once: another would not be the "
                "sample that is charged; use private.data_loader, and change inputs inside losses(model, batch)"
            )
        return found

    def _unused(self) -> Drawn | None:
        """The batch that was drawn for the next release, if it was."""
        found = self.pending
        return found if found is not None and found.draw.release == self._run.step.airlock.releases else None

    def _read(self) -> Iterator[tuple[Draw, Batch]]:
        """Draws with their batches; worker processes read ahead where the draws are known ahead."""
        records = self._run.prepared.records
        workers = self._options.get("num_workers", 0)
        if not workers or not self._run.prepared.plan.method.foreseeable:
            yield from self._one_by_one(records)
        while True:  # from where the run stands, also if it went back within the pass
            ahead = _Ahead(self._run, self._batches)
            for batch in DataLoader(_Batches(records), sampler=ahead, batch_size=None, **self._options):
                draw = ahead.draws.popleft()
                if draw.release != self._run.step.airlock.releases:
                    break
                yield draw, batch

    def _one_by_one(self, records: RecordSource) -> Iterator[tuple[Draw, Batch]]:
        """Draws with their batches; of records on disk a thread reads one draw ahead."""
        with ReadAhead(self._run) as ahead:
            while True:
                draw, batch = ahead()
                if draw is None:
                    draw = self._run.step.draw()
                    batch = read(records, draw.which, draw.seed)
                yield draw, batch


class _Batches(Dataset[Any]):
    """Record sources as datasets whose items are whole batches."""

    def __init__(self, records: RecordSource) -> None:
        """Remember the records."""
        self._records = records

    def __getitem__(self, draw: Draw) -> Batch:
        return read(self._records, draw.which, draw.seed)


class _Ahead(Sampler[Draw]):
    """The draws of one pass, made when workers ask for them: a few ahead of the step, not a whole pass of indices."""

    def __init__(self, run: RecordedRun, batches: int) -> None:
        """Nothing is drawn yet."""
        self._run = run
        self._count = min(batches, run.prepared.plan.schedule.steps - run.prepared.walk.time)
        self.draws: deque[Draw] = deque()

    def __iter__(self) -> Iterator[Draw]:
        """Draw, in the process that holds the secret stream, what a worker will read."""
        first = self._run.step.airlock.releases
        for release in range(first, first + self._count):
            step = self._run.step
            self.draws.append(step.draw(release - step.airlock.releases))
            yield self.draws[-1]

    def __len__(self) -> int:
        return self._count
