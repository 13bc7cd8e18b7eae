"""Clipped sums without per-example gradients: norms from recorded inputs and output gradients, then one contraction.

Shapes: B examples, P trainable parameters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.secret import ClippedSum
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost.assemble import agree, blocks
from dpsrm.gradients.ghost.blocks import Block, Measure
from dpsrm.gradients.ghost.mixture import Combination, Mixture
from dpsrm.gradients.ghost.recorder import Recording, Route, record
from dpsrm.gradients.ghost.survey import Survey, survey
from dpsrm.gradients.objective import Objective
from dpsrm.gradients.query import ClipRule, Excess, Part, Query, part_factors, refuse_excess
from dpsrm.gradients.rows import Tally

_log = logging.getLogger(__name__)
_CACHED, _MOST, _FEW = 2**20, 2**25, 8
"""Numbers recorded at once per point: about 4 MB of float32, so that they stay in the cache; up to 128 MB only to keep
pieces of a few examples together, because the parameters are read once per piece."""


class GhostEngine:
    """Clipped sums from one forward and backward pass per point, in pieces of `max_physical_batch` examples.

    Args:
        objective: the module and its loss; the module is not changed, and nothing is attached to it.
        max_physical_batch: how many examples are recorded at once; by default as many as stay in the cache.
        notice: told, once, which part of the module no rule fits, so that `torch.func` computes it; logs by default.

    Guarantee: no example contributes more than Σ weight·clip, rounding included (`_upper`); a module in which one
    example's loss depends on another's is refused at the first batch.

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
                parameter.dtype in (torch.float32, torch.float64),
                "private training needs float32 or float64 parameters: shorter ones cannot hold a clip's bound",
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
        self._surveys: dict[torch.Size, Survey] = {}

    def __call__(self, query: Query, inputs: Tensor, targets: Tensor) -> ClippedSum[Tensor]:
        """The clipped sum of `query` over the batch."""
        tally = Tally.empty(query)
        if len(inputs) == 0:
            return tally.result()
        seen = self._survey(query, inputs, targets)
        if seen.route is None:
            return FunctionalEngine(self.objective, max_physical_batch=self.max_physical_batch)(query, inputs, targets)
        each = self.max_physical_batch or _automatic(seen.numbers, len(inputs))
        for piece in range(0, len(inputs), each):
            cut = slice(piece, piece + each)
            self._add(tally, inputs[cut], targets[cut], seen.route)
        return tally.result()

    def _survey(self, query: Query, inputs: Tensor, targets: Tensor) -> Survey:
        """What is known about the module for inputs of this shape; says once what is left to `torch.func`."""
        found = self._surveys.get(inputs.shape[1:])
        if found is None:
            found = survey(self.objective, query.points[0], inputs, targets)
            if found.reason and not any(other.reason for other in self._surveys.values()):
                what = "the whole module" if found.route is None else "a part of the module"
                self._notice(f"torch.func computes {what}, more slowly, because no rule fits: {found.reason}")
            self._surveys[inputs.shape[1:]] = found
        return found

    def _add(self, tally: Tally, inputs: Tensor, targets: Tensor, route: Route) -> None:
        """Add one piece of the batch."""
        query, examples = tally.query, len(inputs)
        recordings = self._recordings(query, inputs, targets, route)
        if not agree(recordings, route=route, examples=examples):
            self._add_elsewhere(tally, inputs, targets)
            return
        mixture = Mixture.of(query)
        found = blocks(recordings, mixture, route=route, examples=examples)
        losses_B = recordings[0].losses_B
        del recordings
        tally.rows += examples
        tally.loss += float(losses_B[torch.isfinite(losses_B)].double().sum())
        factors = self._factors(tally, mixture, list(found.values()), losses_B)
        weights = {atom: torch.zeros_like(losses_B, dtype=torch.float64) for atom in mixture.atoms}
        for part, mixed, factor_B in zip(query.parts, mixture.parts, factors, strict=True):
            for atom, c in mixed.items():
                weights[atom] += part.weight * c * factor_B
        rounded = {atom: weight_B.to(losses_B.dtype) for atom, weight_B in weights.items()}
        for name, total in self.objective.layout.split(tally.total_P).items():
            if name in found:
                found[name].add(rounded, total.view(-1))

    def _recordings(self, query: Query, inputs: Tensor, targets: Tensor, route: Route) -> list[Recording]:
        """One pass per point, all with the same random numbers."""
        state = torch.get_rng_state()
        recordings = []
        for point_P in query.points:
            torch.set_rng_state(state)
            recordings.append(record(self.objective, point_P, inputs, targets, route=route))
        return recordings

    def _factors(self, tally: Tally, mixture: Mixture, found: list[Block], losses_B: Tensor) -> list[Tensor]:
        """The clip factor of every part and example; zero for examples that are not finite."""
        zero_B = torch.zeros_like(losses_B, dtype=torch.float64)
        measures = []
        for mixed in mixture.parts:
            measure = Measure(zero_B, zero_B)
            for block in found if mixed else ():
                measure = measure.plus(block.measure(mixed))
            measures.append(measure)
        finite_B = torch.stack([torch.isfinite(m.square_B) for m in measures]).all(dim=0)
        tally.nonfinite += int((~finite_B).sum())
        if not bool(finite_B.all()):
            for block in found:
                block.silence(finite_B)
        factors = []
        for index, (part, measure) in enumerate(zip(tally.query.parts, measures, strict=True)):
            if part.weight > 0 and tally.query.excess is Excess.RAISE:
                refuse_excess(torch.where(finite_B, measure.square_B.sqrt(), torch.nan), part)
            upper_B = _upper(measure, mixture.parts[index], found, part, losses_B.dtype)
            tally.clipped[index] += int((finite_B & (upper_B > part.clip)).sum()) if part.weight > 0 else 0
            factors.append(torch.where(finite_B, part_factors(upper_B, part), 0))
        return factors

    def _add_elsewhere(self, tally: Tally, inputs: Tensor, targets: Tensor) -> None:
        """Add a piece in which the module did not do what the survey saw, by `torch.func`."""
        FunctionalEngine(self.objective, max_physical_batch=self.max_physical_batch).add(tally, inputs, targets)


def _automatic(numbers: int, examples: int) -> int:
    """How many examples at once, if each has `numbers` numbers recorded per point; pieces of equal size."""
    most = max(1, _CACHED // max(1, numbers), min(_FEW, _MOST // max(1, numbers)))
    return math.ceil(examples / max(1, round(examples / most)))


def _upper(measure: Measure, mixed: Combination, found: list[Block], part: Part, dtype: torch.dtype) -> Tensor:
    """A norm that what is added to the sum cannot exceed, rounding included.

    With u the unit of rounding, a norm by Gram matrices is off by a few u·spread, one by rows by a few u·square, and
    the contraction adds an error of a few u·√spread; each is given eight or more times what one rounding does.
    Where the pieces cancel so much that the first would cost accuracy, the norm is taken again from float64 products.
    """
    u = torch.finfo(dtype).eps / 2
    square_B = measure.square_B + 1e7 * torch.finfo(dtype).tiny
    doubt_B = 8 * u * measure.spread_B
    acts_B = ((square_B + doubt_B).sqrt() * (1 + 64 * u) > part.clip) | (part.rule is ClipRule.AUTO)
    redo_B = acts_B & (measure.spread_B > 8 * square_B)
    if bool(redo_B.any()):
        rows = redo_B.nonzero().flatten()
        square_B = square_B.index_put((rows,), torch.stack([b.precise(mixed, rows) for b in found]).sum(0))
        doubt_B = torch.where(redo_B, 0, doubt_B)
    return (square_B * (1 + 16 * u) + doubt_B).sqrt() + 4 * u * measure.spread_B.sqrt()
