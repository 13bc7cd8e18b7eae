"""From a question and the drawn indices to the secret sum: by the records' own rows, or gathered into a batch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsrm.core.secret import ClippedScores, ClippedSum, Streams
from dpsrm.data import Picked, Records, RecordSource, SparseRecords, UnitRecords, csr_tensor
from dpsrm.data.apart import reading
from dpsrm.gradients import Batch, Engine, LinearEngine, Objective, Query, clipped_losses
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.linear import LinearSums
from dpsrm.gradients.torch_state import seed_generators
from dpsrm.methods import Choice
from dpsrm.training.prepare import rows_of

Which = npt.NDArray[np.int64] | Picked
"""The positions of records, or the rows of units."""


class Summer(Protocol):
    """Computes what a release is made of, over some of the records."""

    def total(self, query: Query, which: Which, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum of release number `release`; `batch` holds the records, if they were read already."""

    def scores(self, choice: Choice, which: Which, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses of a choice's candidates."""


def summer(engine: Engine, objective: Objective, records: RecordSource, streams: Streams, *, steady: bool) -> Summer:
    """The linear engine reads records in memory where they lie; every other engine gets the batch gathered."""
    if isinstance(engine, LinearEngine):
        engine = LinearEngine(objective, population=len(records), steady=steady)  # never from a number of rows
        rows, people = rows_of(records), isinstance(records, UnitRecords) and records.most > 1
        if isinstance(rows, Records):
            return _InPlace(engine, engine.over(rows.inputs, rows.targets, people=people), people=people)
        if isinstance(rows, SparseRecords):
            return _InPlace(engine, engine.over(csr_tensor(rows.matrix), rows.targets, people=people), people=people)
    return _Gathered(engine, objective, records, streams, steady=steady)


def read(records: RecordSource, which: Which, seed: int) -> Batch:
    """The batch of the records drawn; a dataset that draws random numbers gets those of `seed` for each record."""
    with reading(seed):
        if isinstance(records, UnitRecords) and isinstance(which, Picked):
            return records.batch(which)
        assert not isinstance(which, Picked)
        return records.take(which)


class _InPlace:
    """Linear models over records in memory: no randomness, nothing copied.

    A batch that was read already is what is summed, not what the records have become meanwhile: its digest was noted.
    """

    def __init__(self, engine: LinearEngine, sums: LinearSums, *, people: bool) -> None:
        """Keep the rows; of `people`, whose they are matters, too."""
        self._engine, self._sums, self._people = engine, sums, people

    def _drawn(self, which: Which, batch: Batch | None) -> tuple[LinearSums, Any]:
        """The sums, and what was drawn as they take it."""
        if batch is not None:
            return self._engine.over_batch(batch)
        if not isinstance(which, Picked):
            return self._sums, which
        return self._sums, (which.rows, which.starts) if self._people else which.rows

    def total(self, query: Query, which: Which, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum."""
        sums, picked = self._drawn(which, batch)
        return sums(query, picked)

    def scores(self, choice: Choice, which: Which, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses, in closed form."""
        sums, picked = self._drawn(which, batch)
        return sums.scores(choice.points, picked, clip=choice.clip, offsets=choice.offsets)


class _Gathered:
    """Any engine, over the batch as tensors; layers with randomness draw from the public seed of the release."""

    def __init__(
        self, engine: Engine, objective: Objective, records: RecordSource, streams: Streams, *, steady: bool
    ) -> None:
        """Keep what is needed."""
        self._engine, self._objective, self._records, self._streams = engine, objective, records, streams
        self._steady = steady
        self._device = next(objective.module.parameters()).device

    def total(self, query: Query, which: Which, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum by the engine."""
        return self._engine(query, self._taken(which, release, batch))

    def scores(self, choice: Choice, which: Which, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses by the module."""
        taken = self._taken(which, release, batch)
        clip, offsets, steady = choice.clip, choice.offsets, self._steady
        return clipped_losses(self._objective, choice.points, taken, clip=clip, offsets=offsets, steady=steady)

    def _taken(self, which: Which, release: int, batch: Batch | None) -> Batch:
        """The batch, and the generator where this release begins."""
        taken = read(self._records, which, self._streams.record_seed(release)) if batch is None else batch
        seed_generators(self._streams.public_seed(release))
        return on_device(taken, self._device)
