"""Clipped sums without per-example gradients: norms from recorded inputs and output gradients, then one contraction.

Shapes: B examples, P trainable parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum
from dpsrm.gradients.batch import Batch, as_batch, dense, example, examples, groups, rows, shapes
from dpsrm.gradients.checked import Seen, chosen, compare_parts
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost.assemble import agree, blocks
from dpsrm.gradients.ghost.blocks import Block, Measure
from dpsrm.gradients.ghost.look import Look, look, need_rules
from dpsrm.gradients.ghost.mixture import Combination, Mixture
from dpsrm.gradients.ghost.recorder import Recording, record
from dpsrm.gradients.ghost.rounding import CHUNKED, DOUBT, MOST_PIECES
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.query import MARGIN, ClipRule, Excess, Part, Query, part_factors, refuse_excess
from dpsrm.gradients.rows import Tally

_log = logging.getLogger(__name__)
_CACHED, _MOST, _FEW = 2**21, 2**25, 8
"""Numbers recorded at once per point: about 8 MB of float32, so that they stay in the cache; up to 128 MB only to keep
pieces of a few examples together, because the parameters are read once per piece."""


class GhostEngine:
    """Clipped sums from one forward and backward pass per point, in pieces of `max_physical_batch` examples.

    Args:
        objective: the module and its loss; neither is ever run itself (see `Objective`).
        max_physical_batch: how many examples are recorded at once; by default as many as stay in the cache.
        notice: told, once, which part of the module no rule fits, so that `torch.func` computes it; logs by default.

    Guarantee: each example is run alone (see `Objective`), so its contribution depends on no other; no example
    contributes more than Σ weight·clip, and replacing one moves the sum by at most twice that, rounding included
    (docs/decisions/rounding.md).

    Edge cases: dropout draws the same masks at every point of a query. An example whose gradient is not finite, or
    whose squared norm does not fit into the parameters' type, contributes zero and is counted.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        max_physical_batch: int | None = None,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        """Remember the objective; the module is looked at when the first batch comes."""
        for name, parameter in objective.module.named_parameters():
            need(
                not parameter.requires_grad or parameter.dtype in (torch.float32, torch.float64),
                "trainable parameters must be float32 or float64: shorter ones cannot hold a clip's bound",
                parameter=name,
                dtype=parameter.dtype,
                remedy="call module.float() first",
            )
        for name, layer in objective.module.named_modules():
            fixed = not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or layer.max_norm is None
            need(fixed, "an embedding must not rescale its own weights", layer=name, remedy="leave out max_norm")
        self.objective = objective
        self.max_physical_batch = max_physical_batch
        self._notice = notice
        self._looks: dict[tuple[torch.Size, ...], Look] = {}

    def __call__(self, query: Query, batch: Batch) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        tally = Tally.empty(query)
        for group in groups(batch):
            if examples(group):
                self._add_group(tally, dense(group))
        return tally.result()

    def _add_group(self, tally: Tally, batch: Batch) -> None:
        """Add examples of one shape, in pieces that fit."""
        seen, count = self._look(tally.query, batch), examples(batch)
        if seen.modules is None:
            FunctionalEngine(self.objective, max_physical_batch=self.max_physical_batch).add(tally, batch)
            return
        each = self.max_physical_batch or _automatic(seen.numbers, count)
        for start in range(0, count, each):
            self._add(tally, rows(batch, slice(start, start + each)), seen.modules)

    def _look(self, query: Query, batch: Batch) -> Look:
        """What is known about the module for examples of this shape; says once what is left to `torch.func`."""
        found = self._looks.get(shapes(batch))
        if found is None:
            found = look(self.objective, query.points[0], as_batch(example(batch, 0)))
            if found.reason and not any(other.reason for other in self._looks.values()):
                what = "the whole module" if found.modules is None else "a part of the module"
                self._notice(f"torch.func computes {what}, more slowly, because no rule fits: {found.reason}")
            self._looks[shapes(batch)] = found
        return found

    def _add(self, tally: Tally, batch: Batch, modules: Sequence[str]) -> None:
        """Add one piece of the batch."""
        query = tally.query
        recordings = self._recordings(query, batch, modules)
        if not agree(recordings):
            need_rules(self.objective, sorted({name for recording in recordings for name in recording.leaks}))
            FunctionalEngine(self.objective, max_physical_batch=self.max_physical_batch).add(tally, batch)
            return
        mixture = Mixture.of(query)
        found = blocks(recordings, mixture)
        losses_B = recordings[0].losses_B
        losses = [recording.losses_B for recording in recordings]
        del recordings
        tally.rows += len(losses_B)
        tally.loss += float(losses_B[torch.isfinite(losses_B)].double().sum())
        measures = _measures(mixture, list(found.values()), losses_B)
        if self.objective.way is Way.BATCH:
            self._compare(query, batch, losses, measures)
        self._add_blocks(tally, mixture, found, measures)

    def _add_blocks(self, tally: Tally, mixture: Mixture, found: dict[str, Block], measures: Sequence[Measure]) -> None:
        """Clip and add the gradients of one piece."""
        lengths = self._lengths(tally, mixture, list(found.values()), measures)
        weights = {atom: torch.zeros_like(lengths[0].factor_B) for atom in mixture.atoms}
        additions = 0
        for part, mixed, length in zip(tally.query.parts, mixture.parts, lengths, strict=True):
            for atom, c in mixed.items():
                weights[atom] += part.weight * c * length.factor_B
        for name, total in self.objective.layout.split(tally.total_P).items():
            if name in found:
                block = found[name]
                loose_B = torch.stack([length.pieces_B > block.most_spread for length in lengths]).any(0)
                additions = max(additions, block.add(weights, total.view(-1), loose_B=loose_B))
        tally.additions += additions

    def _recordings(self, query: Query, batch: Batch, modules: Sequence[str]) -> list[Recording]:
        """One pass per point, all with the same random numbers."""
        state = torch.get_rng_state()
        recordings = []
        for point_P in query.points:
            torch.set_rng_state(state)
            recordings.append(record(self.objective, point_P, batch, modules=modules))
        return recordings

    def _compare(self, query: Query, batch: Batch, losses: Sequence[Tensor], measures: Sequence[Measure]) -> None:
        """Compare a few random examples of a batched pass with what they give alone."""
        for i in chosen(examples(batch)):
            norms = [float(measure.square_B[i].sqrt()) for measure in measures]
            seen = Seen([float(losses_B[i]) for losses_B in losses], norms)
            compare_parts(self.objective, query, example(batch, i), seen)

    def _lengths(self, tally: Tally, mixture: Mixture, found: list[Block], measures: Sequence[Measure]) -> list[Length]:
        """The clip factor of every part and example; zero for examples that are not finite."""
        finite_B = torch.stack([torch.isfinite(m.square_B + m.doubt_B + m.spread_B) for m in measures]).all(dim=0)
        tally.nonfinite += int((~finite_B).sum())
        if not bool(finite_B.all()):
            for block in found:
                block.silence(finite_B)
        lengths, margin = [], MARGIN + (CHUNKED if any(block.most_spread < math.inf for block in found) else 0)
        for index, (part, measure) in enumerate(zip(tally.query.parts, measures, strict=True)):
            if part.weight > 0 and tally.query.excess is Excess.RAISE:
                refuse_excess(torch.where(finite_B, measure.square_B.sqrt(), torch.nan), part)
            upper_B = _upper(measure, mixture.parts[index], found, part)
            tally.clipped[index] += int((finite_B & (upper_B > part.clip)).sum()) if part.weight > 0 else 0
            lengths.append(_length(upper_B, measure, part, finite_B, margin=margin))
        return lengths


def _measures(mixture: Mixture, found: Sequence[Block], losses_B: Tensor) -> list[Measure]:
    """What is known about the norm of every part and example."""
    zero_B = torch.zeros_like(losses_B, dtype=torch.float64)
    measures = []
    for mixed in mixture.parts:
        measure = Measure(zero_B, zero_B, zero_B)
        for block in found if mixed else ():
            measure = measure.plus(block.measure(mixed))
        measures.append(measure)
    return measures


@dataclass(frozen=True)
class Length:
    """A part's clip factor for each example, and how long its weighted pieces are together, in clips."""

    factor_B: Tensor
    pieces_B: Tensor


def _length(upper_B: Tensor, measure: Measure, part: Part, finite_B: Tensor, *, margin: float) -> Length:
    """The factor that keeps a part within its clip, and its pieces within what float64 adds without harm."""
    spread_B = measure.spread_B.sqrt()
    factor_B = torch.where(finite_B, part_factors(upper_B, part, margin), 0)
    if part.clip == math.inf:
        return Length(factor_B, torch.zeros_like(spread_B))
    factor_B = torch.minimum(factor_B, torch.nan_to_num(MOST_PIECES * part.clip / spread_B, nan=math.inf))
    return Length(factor_B, torch.where(finite_B, factor_B * spread_B / part.clip, 0))


def _automatic(numbers: int, examples: int) -> int:
    """How many examples at once, if each has `numbers` numbers recorded per point; pieces of equal size."""
    most = max(1, _CACHED // max(1, numbers), min(_FEW, _MOST // max(1, numbers)))
    return math.ceil(examples / max(1, round(examples / most)))


def _upper(measure: Measure, mixed: Combination, found: list[Block], part: Part) -> Tensor:
    """A norm that no example's part exceeds; where rounding makes it doubtful, taken again from float64 products.

    A relative 2^-24 stands for the roundings of this function and of float64 sums over blocks.
    """
    square_B, doubt_B = measure.square_B, measure.doubt_B
    acts_B = ((square_B + doubt_B).sqrt() > part.clip * (1 - 2 * CHUNKED)) | (part.rule is ClipRule.AUTO)
    redo_B = acts_B & (doubt_B > DOUBT * square_B) & torch.isfinite(doubt_B)
    if bool(redo_B.any()):
        rows = redo_B.nonzero().flatten()
        square_B = square_B.index_put((rows,), torch.stack([b.precise(mixed, rows) for b in found]).sum(0))
        doubt_B = torch.where(redo_B, 2.0**-36 * measure.spread_B, doubt_B)
    return (square_B * (1 + 2.0**-24) + doubt_B).sqrt()
