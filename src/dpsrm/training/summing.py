"""From a question and the drawn indices to the secret sum: by the records' own rows, or gathered into a batch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dpsrm.core.randomness import Streams
from dpsrm.core.secret import ClippedScores, ClippedSum
from dpsrm.data import Records, RecordSource, SparseRecords, csr_tensor
from dpsrm.gradients import Batch, Engine, LinearEngine, Objective, Query, clipped_losses
from dpsrm.gradients.batch import on_device
from dpsrm.gradients.generators import seed_generators
from dpsrm.gradients.linear_sums import LinearSums
from dpsrm.methods import Choice

Indices = npt.NDArray[np.int64]


class Summer(Protocol):
    """Computes what a release is made of, over the records at some indices."""

    def total(self, query: Query, indices: Indices, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum of release number `release`; `batch` holds the records, if they were read already."""
        ...

    def scores(self, choice: Choice, indices: Indices, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses of a choice's candidates."""
        ...


def summer(engine: Engine, objective: Objective, records: RecordSource, streams: Streams, *, steady: bool) -> Summer:
    """The linear engine reads records in memory where they lie; every other engine gets the batch gathered."""
    if isinstance(engine, LinearEngine):
        if isinstance(records, Records):
            return _InPlace(engine.over(records.inputs, records.targets))
        if isinstance(records, SparseRecords):
            return _InPlace(engine.over(csr_tensor(records.matrix), records.targets))
        engine = LinearEngine(objective, population=len(records), steady=steady)
    return _Gathered(engine, objective, records, streams, steady=steady)


class _InPlace:
    """Linear models over records in memory: no randomness, nothing copied."""

    def __init__(self, sums: LinearSums) -> None:
        """Keep the rows."""
        self._sums = sums

    def total(self, query: Query, indices: Indices, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum."""
        return self._sums(query, indices)

    def scores(self, choice: Choice, indices: Indices, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses, in closed form."""
        return self._sums.scores(choice.points, indices, clip=choice.clip, offsets=choice.offsets)


class _Gathered:
    """Any engine, over the batch as tensors; layers with randomness draw from the public seed of the release."""

    def __init__(
        self, engine: Engine, objective: Objective, records: RecordSource, streams: Streams, *, steady: bool
    ) -> None:
        """Keep what is needed."""
        self._engine, self._objective, self._records, self._streams = engine, objective, records, streams
        self._steady = steady
        self._device = next(objective.module.parameters()).device

    def total(self, query: Query, indices: Indices, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum by the engine."""
        return self._engine(query, self._taken(indices, release, batch))

    def scores(self, choice: Choice, indices: Indices, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses by the module."""
        taken = self._taken(indices, release, batch)
        clip, offsets, steady = choice.clip, choice.offsets, self._steady
        return clipped_losses(self._objective, choice.points, taken, clip=clip, offsets=offsets, steady=steady)

    def _taken(self, indices: Indices, release: int, batch: Batch | None) -> Batch:
        """The batch, and the generator where this release begins."""
        taken = self._records.take(indices) if batch is None else batch
        seed_generators(self._streams.public_seed(release))
        return on_device(taken, self._device)
