"""Words that an example looks up may depend on the point: the form in which sums are kept must not depend on that."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.gradients import GhostEngine, ModelLosses, Objective, Part, Query
from dpsrm.gradients.ghost.blocks import LookupBlock
from dpsrm.gradients.ghost.engine import blocks
from dpsrm.gradients.ghost.terms import Lookup, Outer
from dpsrm.gradients.ghost.tied import TiedBlock

T, D, V, N = 8, 64, 256, 1600
PICKED = torch.arange(T) * 31


class Picked(nn.Module):
    """Each position looks up the word that is most like it; tied: and is compared with all words by the same weight."""

    def __init__(self, *, tied):
        super().__init__()
        self.w, self.tied = nn.Parameter(torch.randn(V, D, generator=torch.Generator().manual_seed(0))), tied

    def forward(self, x):
        words = (x @ self.w.detach().T).argmax(-1)
        found = (F.embedding(words, self.w) * x).sum((1, 2))
        return 100 * (found + F.linear(x, self.w).logsumexp(-1).sum(1) if self.tied else found.tanh())


def losses(model, batch):
    return model(batch[0])


def problem(*, tied):
    """An objective, a query at two points, a record with the same words at both, and one with others."""
    objective = Objective.of(Picked(tied=tied), ModelLosses(losses))
    draw, here_P = torch.Generator().manual_seed(3), objective.theta()
    step_P = torch.randn(len(here_P), generator=draw)
    there_P = here_P + 1e-2 * step_P / step_P.norm()
    difference = Part(coefficients=(1.0, -1.0), clip=1e-3, weight=0.7, name="difference")
    query = Query(points=(here_P, there_P), parts=(difference, Part(coefficients=(1.0, 0.0), clip=1.0, weight=0.3)))
    between = ((here_P + there_P) / 2).view(V, D)
    same = between[PICKED].clone()
    other = torch.randn(T, D, generator=draw)
    for x in other:  # as like its second word as its first, between the points
        first, second = between[(between @ x).topk(2).indices]
        x -= (first - second) * ((first - second) @ x) / (first - second).square().sum()
    chosen = [(one @ point_P.view(V, D).T).argmax(-1) for one in (same, other) for point_P in query.points]
    assert torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[2], chosen[3])
    return objective, query, same, other


@pytest.mark.parametrize("tied", [True, False])
def test_a_record_whose_words_differ_moves_no_other(tied, monkeypatch):
    """All others were kept in another form then, with another margin: a sum moved by 0.71, claimed 0.60."""
    objective, query, same, other = problem(tied=tied)
    forms = []

    def kept(*args, **kwargs):
        found = blocks(*args, **kwargs)
        forms.append([type(block) for block in found.values()])
        return found

    monkeypatch.setattr("dpsrm.gradients.ghost.engine.blocks", kept)
    batch = same.expand(N, T, D).clone()
    neighbour = batch.clone()
    neighbour[17] = other
    engine = GhostEngine(objective)
    one, two, alone, replaced = (engine(query, (x,)).secret for x in (batch, neighbour, same[None], other[None]))
    assert float((one - two).norm()) <= 2 * query.bound
    assert torch.allclose(one - two, alone - replaced, rtol=0, atol=1e-6)
    assert all(form == forms[0] for form in forms)


@pytest.mark.parametrize("tied", [True, False])
def test_words_that_differ_are_counted_as_they_are(tied):
    """Of five examples one has the same words at both points, one shares some, one has a word twice, two share none."""
    draw, first = torch.Generator().manual_seed(0), torch.tensor([[0, 1], [0, 1], [3, 3], [4, 5], [6, 2]])
    ids = first, torch.tensor([[0, 1], [1, 2], [3, 5], [6, 7], [7, 7]])
    lookups = [Lookup(words, torch.randn(5, 2, 3, generator=draw), 8) for words in ids]
    outers = [Outer(torch.randn(5, 4, 3, generator=draw), torch.randn(5, 4, 8, generator=draw)) for _ in ids]
    one = [term.rows().double() for term in lookups]
    rows = [x + outer.rows().double() for x, outer in zip(one, outers, strict=True)] if tied else one
    atoms = {(0, 0): rows[0], (0, 1): rows[0] - rows[1], (1, 1): rows[1]}
    block = TiedBlock(lookups, outers, list(atoms)) if tied else LookupBlock(lookups)
    for part in ({(0, 0): 1.0}, {(0, 1): 1.0}, {(0, 1): 0.7, (1, 1): 0.3}):
        exact = sum(c * atoms[atom] for atom, c in part.items()).square().sum(1)
        assert torch.allclose(block.measure(part).square_B, exact, rtol=1e-5)
        assert torch.allclose(block.precise(part, torch.tensor([1, 3])), exact[[1, 3]], rtol=1e-5)
    weights = {atom: torch.rand(5, generator=draw, dtype=torch.float64) for atom in atoms}
    total_P = torch.zeros(24, dtype=torch.float64)
    block.add(weights, total_P, loose_B=torch.zeros(5, dtype=torch.bool))
    assert torch.allclose(total_P, sum(w_B @ atoms[atom] for atom, w_B in weights.items()), rtol=1e-5, atol=1e-6)
