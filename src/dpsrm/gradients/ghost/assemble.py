"""From recorded calls to blocks, one per parameter, in the form that costs least; and from blocks to the total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients.ghost.blocks import Block, LookupBlock, RowsBlock
from dpsrm.gradients.ghost.lengths import Length
from dpsrm.gradients.ghost.mixture import Mixture
from dpsrm.gradients.ghost.products import OuterBlock
from dpsrm.gradients.ghost.recording import Recording
from dpsrm.gradients.ghost.stacked import StackedBlock
from dpsrm.gradients.ghost.terms import UNLIKE, Lookup, Outer, Term, added
from dpsrm.gradients.ghost.tied import TiedBlock
from dpsrm.gradients.ghost.windows import Windows, window_rows
from dpsrm.gradients.module_state import Layout
from dpsrm.gradients.rows import Tally

_PASSES = 56
"""What it costs to write, subtract, measure and sum one number of a materialised row, in multiplications."""


_STACKED = 2**20
"""Numbers of rows in one array at two points, 4 MB of float32: they fit where a pass has just given memory back."""


def blocks(recordings: list[Recording], mixture: Mixture, layout: Layout, *, steady: bool = True) -> dict[str, Block]:
    """The blocks of all parameters that were used, from recordings that agree; `steady` as in `Tally`.

    The list is emptied: what a block does not need of its recordings is given back before the next block is made. What
    is measured must be what is added: rows of another length than the parameter would be broadcast, and are refused.
    """
    examples, sizes = len(recordings[0].losses_B), dict(zip(layout.names, layout.sizes, strict=True))
    uses = []
    while recordings:
        uses.append(recordings.pop(0).terms())
    found = {}
    for name in list(uses[0]):
        found[name] = _block([point.pop(name) for point in uses], mixture, steady=steady)
        shape = found[name].shape
        need(shape == (examples, sizes[name]), UNLIKE, parameter=name, rows=shape, examples=examples, long=sizes[name])
    return found


def agree(recordings: Sequence[Recording]) -> bool:
    """Whether the same calls were made at every point, and nothing leaked."""
    keys = [[call.key for call in recording.calls] for recording in recordings]
    return all(other == keys[0] for other in keys) and not any(recording.leaks for recording in recordings)


def add_blocks(
    tally: Tally, mixture: Mixture, found: dict[str, Block], known: Sequence[Length], totals: Mapping[str, Tensor]
) -> None:
    """Add the clipped gradients of one piece to each parameter's part of the total; `found` is emptied."""
    weights = {atom: torch.zeros_like(known[0].factor_B) for atom in mixture.atoms}
    additions = 0
    for part, mixed, length in zip(tally.query.parts, mixture.parts, known, strict=True):
        for atom, c in mixed.items():
            weights[atom] += part.weight * c * length.factor_B
    for name, total in totals.items():
        if name in found:
            block = found.pop(name)  # its memory is free for what comes next
            loose_B = torch.stack([length.pieces_B > block.most_spread for length in known]).any(0)
            additions = max(additions, block.add(weights, total.view(-1), loose_B=loose_B))
    tally.additions += additions


def _block(points: list[list[Term]], mixture: Mixture, *, steady: bool) -> Block:
    """The block of one parameter, from its terms at each point."""
    merged = [_merged(terms) for terms in points]
    if all(isinstance(term, Lookup) for term in merged):
        return LookupBlock([t for t in merged if isinstance(t, Lookup)])
    if all(isinstance(term, (Outer, Windows)) for term in merged) and _factored(merged[0], len(points)):
        outers = [t.outer() if isinstance(t, Windows) else t for t in merged if isinstance(t, (Outer, Windows))]
        order = merged[0].order if isinstance(merged[0], Windows) else None
        return OuterBlock(outers, mixture.atoms, order, steady=steady)
    tied = _tied(points)
    if tied is not None and _factored(tied[1][0], len(points)):
        return TiedBlock(*tied, mixture.atoms, steady=steady)
    windows = [t for t in merged if isinstance(t, Windows)]
    if len(windows) == len(merged):
        size = max(1, _STACKED // windows[0].row) if len(windows) > 1 else len(windows[0].g)
        parts = ([w.some(slice(at, at + size)) for w in windows] for at in range(0, len(windows[0].g), size))
        stacked = [RowsBlock(*window_rows(part), steady=steady) for part in parts]
        return stacked[0] if len(stacked) == 1 else StackedBlock(stacked)
    return RowsBlock([added(terms) for terms in points], steady=steady)


def _merged(terms: list[Term]) -> Term | None:
    """The uses of a shared parameter as one term, if they are of one kind; else None."""
    if len(terms) <= 1:
        return terms[0] if terms else None
    outers = [t for t in terms if isinstance(t, Outer)]
    if len(outers) == len(terms):
        return Outer(torch.cat([t.a_BTI for t in outers], 1), torch.cat([t.g_BTO for t in outers], 1))
    lookups = [t for t in terms if isinstance(t, Lookup)]
    if len(lookups) == len(terms):
        ids, gs = torch.cat([t.ids_BT for t in lookups], 1), torch.cat([t.g_BTO for t in lookups], 1)
        return Lookup(ids, gs, lookups[0].size)
    return None


def _tied(points: list[list[Term]]) -> tuple[list[Lookup], list[Outer]] | None:
    """The uses of a weight that is looked up and multiplied with, at each point; None if that is not all."""
    lookups = [_merged([t for t in terms if isinstance(t, Lookup)]) for terms in points]
    outers = [_merged([t for t in terms if isinstance(t, Outer)]) for terms in points]
    both = all(isinstance(t, (Lookup, Outer)) for terms in points for t in terms)
    if not both:
        return None
    found = [t for t in lookups if isinstance(t, Lookup)], [t for t in outers if isinstance(t, Outer)]
    return found if len(found[0]) == len(found[1]) == len(points) else None


def _factored(term: Term | None, points: int) -> bool:
    """Whether Gram matrices are cheaper than materialised rows."""
    if isinstance(term, Outer):
        positions, inputs, outputs = *term.a_BTI.shape[1:], term.g_BTO.shape[2]
    elif isinstance(term, Windows):
        if term.groups > 1:
            return False
        positions, inputs = term.places, term.x.shape[1] * term.window
        outputs = term.g.shape[1]
    else:
        return False
    if positions == 1:
        return True
    grams = positions**2 * (inputs + outputs) * (1 if points == 1 else 3)
    written = inputs * positions if isinstance(term, Windows) else 0
    return grams + _PASSES * points * written < _PASSES * points * inputs * outputs
