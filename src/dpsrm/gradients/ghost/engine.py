"""Clipped sums without per-example gradients: norms from recorded inputs and output gradients, then one contraction.

Shapes: B examples, P trainable parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor

from dpsrm.core.secret import ClippedSum
from dpsrm.core.tree import Ragged
from dpsrm.gradients.batch import Batch, Kind, as_batch, copies, dense, example, examples, groups, kind, padded, rows
from dpsrm.gradients.below import guarded
from dpsrm.gradients.checked import Seen, chosen, compare_parts
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost.assemble import add_blocks, agree, blocks
from dpsrm.gradients.ghost.blocks import Measure
from dpsrm.gradients.ghost.kept import NotKeptError
from dpsrm.gradients.ghost.lengths import lengths, measure_parts
from dpsrm.gradients.ghost.look import Look, look, need_recordable, need_rules, sharing
from dpsrm.gradients.ghost.mixture import Mixture
from dpsrm.gradients.ghost.recording import Recording, record
from dpsrm.gradients.ghost.sizes import even_pieces, most_examples, recorded_at_once, say_pieces
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.places import ONE_BY_ONE, Draws, piece_size, placeless, probes
from dpsrm.gradients.query import Query
from dpsrm.gradients.rows import Tally
from dpsrm.gradients.torch_state import rng_states, set_rng_states

_log = logging.getLogger(__name__)


class GhostEngine:
    """Clipped sums from one forward and backward pass per point, in pieces of `max_physical_batch` examples.

    Args:
        objective: the module and its loss; neither is ever run itself (see `Objective`).
        max_physical_batch: how many examples are recorded at once; by default as many as stay in the cache.
        steady: whether a neighbouring dataset leaves all other examples in their places. Adding or removing a record
            does not, nor does replacing one by another of another shape: batches that are `Ragged` are never steady.
        expected: a public size of a batch: unless `steady`, pieces have that size if they can (else 64).
        notice: told, once, which part of the module no rule fits, so that `torch.func` computes it; logs by default.

    Guarantee: each example is run alone (see `Objective`), so its contribution depends on no other; no example
    contributes more than Σ weight·clip, and replacing one moves the sum by at most twice that, rounding included
    (docs/decisions/rounding.md); unless `steady`, so do records of other shapes, and adding or removing one moves it
    by at most once that (docs/decisions/shifting.md).

    Edge cases: dropout draws the same masks at every point of a query, and unless `steady` for every example. An
    example whose gradient is not finite, or whose squared norm does not fit into the parameters' type, contributes
    zero and is counted.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        max_physical_batch: int | None = None,
        steady: bool = True,
        expected: int | None = None,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        """Remember the objective; the module is looked at when the first batch comes."""
        need_recordable(objective.module)
        self.objective, self.max_physical_batch = objective, max_physical_batch
        self.steady, self._expected = steady, expected
        self._cached, self._notice = recorded_at_once(objective), notice
        self._looks: dict[Kind, Look] = {}
        self._sizes: dict[Kind, int] = {}
        self._show_all = False
        self._functional: FunctionalEngine | None = None

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch.

        Should a pass use its tensors in another way than the first look saw, which takes a module that is another one
        in every pass, the sum begins anew, and all calls are shown from then on.
        """
        state = rng_states()
        try:
            return self._sum(query, batch)
        except NotKeptError:
            self._looks = {alike: replace(found, shown=None) for alike, found in self._looks.items()}
            self._show_all, self._sizes = True, {}
            set_rng_states(state)
            return self._sum(query, batch)

    def _sum(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum."""
        tally = Tally.empty(query, steady=self.steady and not isinstance(batch, Ragged))
        draws = Draws(steady=tally.steady)
        with guarded() if self.objective.way is Way.VMAP else nullcontext():
            for group in filter(examples, groups(batch)):
                self._add_group(tally, dense(group), draws)
        return tally.result()

    def _add_group(self, tally: Tally, batch: Batch, draws: Draws) -> None:
        """Add examples of one shape, in pieces that fit."""
        seen, count = self._look(tally.query, batch), examples(batch)
        if seen.reason:
            self._add_rows(tally, batch, draws)
            return
        each = self.max_physical_batch or even_pieces(seen, count, self._cached)
        each = each if tally.steady else self._size(tally.query, batch, seen)
        for start in range(0, count, each):
            draws.rewind()
            piece = rows(batch, slice(start, start + each))
            if not self._add(tally, piece if tally.steady else padded(piece, each), examples(piece)):
                self._add_rows(tally, piece, draws)

    def _add_rows(self, tally: Tally, batch: Batch, draws: Draws) -> None:
        """Add examples by materialised gradients."""
        if self._functional is None:
            self._functional = FunctionalEngine(
                self.objective,
                max_physical_batch=self.max_physical_batch,
                steady=self.steady,
                expected=self._expected,
            )
        self._functional.add(tally, batch, draws)

    def _size(self, query: Query, batch: Batch, seen: Look) -> int:
        """How many examples of this kind make a piece, if places may shift; tried out once."""
        if (alike := kind(batch)) not in self._sizes:
            size = self.max_physical_batch or piece_size(most_examples(seen, self._cached), self._expected)
            tried = probes(query.points, example(batch, 0)) if size > 1 else ()
            asked = ((replace(query, points=points), copies(one, size)) for points, one in tried)
            free = all(self._placeless(each, equal) for each, equal in asked)
            self._sizes[alike] = size if free else 1
            if not free:
                self._notice(ONE_BY_ONE)
        return self._sizes[alike]

    def _placeless(self, query: Query, equal: Batch) -> bool:
        """Whether equal examples are computed to equal bits."""
        recordings = self._recordings(query, equal, steady=False)
        if not agree(recordings):
            return True  # not added from recordings
        tensors = [tensor for recording in recordings for tensor in recording.tensors]
        mixture = Mixture.of(query)
        losses_B = recordings[0].losses_B
        found = list(blocks(recordings, mixture, self.objective.layout, steady=False).values())
        measures = measure_parts(mixture, found, losses_B)
        return placeless([*tensors, *(t for m in measures for t in (m.square_B, m.doubt_B, m.spread_B))])

    def _look(self, query: Query, batch: Batch) -> Look:
        """What is known about the module for examples of this kind; says once what is left to `torch.func`."""
        found = self._looks.get(alike := kind(batch))
        if found is None:
            found = look(self.objective, query.points[0], as_batch(example(batch, 0)))
            found = replace(found, shown=None) if self._show_all else found
            if found.reason and not any(other.reason for other in self._looks.values()):
                self._notice(f"torch.func computes every gradient, more slowly, because of {found.reason}")
            if not found.reason and self.max_physical_batch is None:
                say_pieces(found, self._cached, self._notice)
            self._looks[alike] = found
        if found.shared is None and len(query.points) > 1:
            found = self._looks[alike] = sharing(found, self.objective, query.points[0], as_batch(example(batch, 0)))
        return found

    def _add(self, tally: Tally, batch: Batch, real: int) -> bool:
        """Add one piece of the batch, of whose examples the first `real` count; False if that cannot be done here."""
        query = tally.query
        recordings = self._recordings(query, batch, steady=tally.steady)
        if not agree(recordings):
            need_rules(self.objective, sorted({name for recording in recordings for name in recording.leaks}))
            return False
        mixture = Mixture.of(query)
        losses = [recording.losses_B for recording in recordings]
        found = blocks(recordings, mixture, self.objective.layout, steady=tally.steady)
        measures = measure_parts(mixture, list(found.values()), losses[0])
        if self.objective.way is Way.BATCH:
            self._compare(query, batch, losses, measures)
        known = lengths(tally, mixture, list(found.values()), measures, losses_B=losses[0][:real])
        add_blocks(tally, mixture, found, known, self.objective.layout.split(tally.total_P))
        return True

    def _recordings(self, query: Query, batch: Batch, *, steady: bool) -> list[Recording]:
        """One pass per point, all with the same random numbers."""
        state = rng_states()
        recordings: list[Recording] = []
        for point_P in query.points:
            set_rng_states(state)
            first = recordings[0] if recordings else None
            shown, shared = self._look(query, batch).once
            found = record(self.objective, point_P, batch, steady=steady, first=first, shown=shown, shared=shared)
            recordings.append(found)
        return recordings

    def _compare(self, query: Query, batch: Batch, losses: Sequence[Tensor], measures: Sequence[Measure]) -> None:
        """Compare a few random examples of a batched pass with what they give alone."""
        for i in chosen(examples(batch)):
            norms = [float(measure.square_B[i].sqrt()) for measure in measures]
            seen = Seen([float(losses_B[i]) for losses_B in losses], norms)
            compare_parts(self.objective, query, example(batch, i), seen)
