"""Rounding included: no contribution above its clip, no two neighbouring sums further apart than the sensitivity."""

import copy
import math

import pytest
import torch
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query, Way
from dpsrm.gradients.ghost.blocks import RowsBlock
from dpsrm.gradients.ghost.products import OuterBlock
from dpsrm.gradients.ghost.rounding import CHUNKED, chunk, gamma, most_spread
from dpsrm.gradients.ghost.terms import Lookup, Order, Outer
from dpsrm.gradients.ghost.tied import TiedBlock
from dpsrm.gradients.query import MARGIN, need_few

F32 = torch.float32


def one_part(objective, clip, *, points=1):
    here_P = objective.layout.read(objective.module)
    coefficients = (1.0,) if points == 1 else (1.0, -1.0)
    near = [
        here_P + 1e-4 * torch.randn(len(here_P), generator=torch.Generator().manual_seed(k)) for k in range(1, points)
    ]
    return Query(points=(here_P, *near), parts=(Part(coefficients=coefficients, clip=clip),))


@pytest.mark.parametrize("engine", [GhostEngine, FunctionalEngine])
def test_a_million_tiny_examples(engine):
    """Equal examples, all clipped: the sum must not exceed the bound of n, nor move too far when one turns round."""
    n, objective = 10**6, Objective.of(nn.Linear(2, 1, bias=False), lambda out, y: out.squeeze(1) * y)
    inputs, targets = torch.tensor([[0.3, 0.7]]).repeat(n, 1), torch.ones(n)
    query, run = one_part(objective, 0.1), engine(objective)
    before = run(query, (inputs, targets))
    assert float(before.secret.norm()) <= n * before.bound
    targets[n // 2] = -1.0
    moved = float((run(query, (inputs, targets)).secret - before.secret).norm())
    assert moved <= before.sensitivity(Adjacency.REPLACE_ONE)
    assert moved >= before.sensitivity(Adjacency.REPLACE_ONE) * (1 - 2 * MARGIN)


@pytest.mark.parametrize("points", [1, 2])
def test_positions_that_cancel(points):
    """T = 96 positions of d = 1200 whose gradients nearly cancel: float32 Gram matrices alone were 2 % off."""
    torch.manual_seed(0)
    module = nn.Linear(1200, 1200, bias=False)
    signs = torch.tensor([1.0, -1.0]).repeat(48).view(96, 1)

    def loss(out, y):
        return (torch.tanh(out) * signs).flatten(1).sum(1) * y

    objective = Objective.of(module, loss)
    base = torch.randn(2, 1, 1200)
    inputs = base + 1e-2 * torch.randn(2, 96, 1200)
    query = one_part(objective, 1e-3, points=points)
    for i in range(2):
        contribution = GhostEngine(objective)(query, (inputs[i : i + 1], torch.ones(1)))
        assert contribution.diagnostics.clipped == (1.0,)
        length = float(contribution.secret.norm())
        assert 0.9 * contribution.bound <= length <= contribution.bound


def test_large_layers_are_within_their_bound_and_near_the_oracle():
    """Layers large enough to be added in float32 chunks: clipped examples lose at most the margin and the doubt."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 288), nn.Tanh(), nn.Linear(288, 256))
    loss = _squared
    objective, exact = Objective.of(module, loss), Objective.of(copy.deepcopy(module).double(), loss, way=Way.LOOP)
    inputs, targets = torch.randn(11, 16, 256), torch.randn(11)
    here_P = objective.layout.read(module)
    points = here_P, here_P + 1e-2 * torch.randn_like(here_P)
    for clip, low in ((1e-3, 1 - CHUNKED - 2**-8), (1e6, 1 - 1e-5)):
        parts = (
            Part(coefficients=(1.0, -1.0), clip=clip, weight=0.5),
            Part(coefficients=(1.0, 0.0), clip=clip, weight=0.5),
        )
        query = Query(points=points, parts=parts)
        found = GhostEngine(objective)(query, (inputs, targets)).secret
        double = Query(points=tuple(p.double() for p in points), parts=parts)
        slow = LoopEngine(exact)(double, (inputs.double(), targets.double())).secret
        assert low <= float(found @ slow / (slow @ slow)) <= 1 + 1e-5
        assert float((found - slow).norm() / slow.norm()) <= (1e-5 if clip > 1 else CHUNKED + 2**-8)


def test_layers_added_in_chunks_leave_room_for_their_rounding():
    module = nn.Linear(256, 256, bias=False)
    objective = Objective.of(module, _squared)
    one = GhostEngine(objective)(one_part(objective, 1e-3), (torch.randn(1, 16, 256), torch.randn(1)))
    assert one.diagnostics.clipped == (1.0,)
    assert float(one.secret.norm()) <= one.bound * (1 - CHUNKED / 2), "half of it is for the rounding of the sum"


def _squared(out, y):
    return (out.flatten(1) - y[:, None]).square().mean(1)


def blocks_of(B, T, D, *, dtype=F32, seed=0):
    draw = torch.Generator().manual_seed(seed)
    outers = [Outer(*(torch.randn(B, T, D, generator=draw, dtype=dtype) for _ in range(2))) for _ in range(2)]
    return outers, OuterBlock(outers, [(0, 0), (0, 1)])


def exact_rows(block, atom):
    """The rows of an atom, in float64, of exactly what the block adds."""
    rows = 0
    for left, right in block.factors({atom: 1.0}).items():
        ((symbol, c),) = right.items()
        rows = rows + c * torch.einsum("bto,bti->boi", block.right[symbol].double(), block.left[left].double())
    return rows.flatten(1)


@pytest.mark.parametrize(("T", "D"), [(64, 160), (1, 40), (16, 200), (300, 130)])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_a_measure_is_off_by_no_more_than_its_doubt(T, D, scale):
    outers, _ = blocks_of(6, T, D)
    outers = [Outer(scale * o.a_BTI, o.g_BTO / scale) for o in outers]
    block = OuterBlock(outers, [(0, 0), (0, 1)])
    for part in ({(0, 0): 1.0}, {(0, 1): 1.0}, {(0, 0): 0.5, (0, 1): -2.0}):
        rows = sum(c * exact_rows(block, atom) for atom, c in part.items())
        found, true = block.measure(part), rows.square().sum(1)
        assert ((found.square_B - true).abs() <= found.doubt_B).all()
        assert (found.spread_B >= true * (1 - 1e-9)).all()
        precise = block.precise(part, torch.arange(6))
        assert torch.allclose(precise, true, rtol=1e-10)


@pytest.fixture
def flushed():
    """Subnormal numbers are flushed to zero, as some programs switch on; by one thread, because each has its switch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("flushed")
def test_underflow_is_no_hiding_place():
    """Inputs of 1e-19 under gradients of 1e15: float32 squares of the inputs are 0, the gradient is not."""
    outers = [Outer(torch.full((1, 64, 160), 1e-19), torch.full((1, 64, 160), 1e15)) for _ in range(2)]
    block = OuterBlock(outers, [(0, 0)])
    assert block.chunk > 0, "this test is about float32 Gram matrices"
    true = exact_rows(block, (0, 0)).square().sum(1)
    found = block.measure({(0, 0): 1.0})
    assert float(found.square_B) == 0
    assert (found.square_B + found.doubt_B >= true).all()


def test_an_example_hidden_by_underflow_is_clipped_all_the_same():
    module = nn.Linear(160, 160, bias=False)
    objective = Objective.of(module, lambda out, y: out.flatten(1).sum(1) * y)
    query = one_part(objective, 1e-9)
    total = GhostEngine(objective)(query, (torch.full((1, 64, 160), 1e-23), torch.tensor([1e17])))
    assert float(total.secret.norm()) <= total.bound
    assert total.diagnostics.nonfinite == 1 or total.diagnostics.clipped == (1.0,)


@pytest.mark.parametrize(("T", "D"), [(64, 160), (300, 130)])
def test_chunks_are_off_by_no_more_than_the_proof_says(T, D):
    _, block = blocks_of(7, T, D)
    assert block.chunk > 0
    total_P = torch.zeros(D * D, dtype=torch.float64)
    weights = {
        atom: torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        for atom in ((0, 0), (0, 1))
    }
    block.add(weights, total_P, loose_B=torch.zeros(7, dtype=torch.bool))
    exact = sum((w[:, None] * exact_rows(block, atom)).sum(0) for atom, w in weights.items())
    spread = sum((w * block.measure({atom: 1.0}).spread_B.sqrt()).sum() for atom, w in weights.items())
    assert float((total_P - exact).norm()) <= gamma(block.chunk * 2 * T + 8, F32) * float(spread)
    loose = torch.zeros_like(total_P)
    block.add(weights, loose, loose_B=torch.ones(7, dtype=torch.bool))
    assert float((loose - exact).norm()) <= 1e-12 * float(spread)


def test_a_chunk_does_not_feel_the_examples_of_another():
    """Only the chunk of a replaced example changes its rounding, whether that example is loose or not."""
    outers, block = blocks_of(8, 64, 160)
    start = 8 // block.chunk * block.chunk
    kept = (torch.arange(8) >= start).double()
    changed = [Outer(o.a_BTI.clone(), o.g_BTO.clone()) for o in outers]
    changed[0].a_BTI[0] += 1.0
    sums = []
    for points, loose in ((outers, False), (changed, False), (changed, True)):
        total_P = torch.zeros(160 * 160, dtype=torch.float64)
        loose_B = torch.arange(8) < int(loose)
        OuterBlock(points, [(0, 0)]).add({(0, 0): kept}, total_P, loose_B=loose_B)
        sums.append(total_P)
    assert 0 < start < 8
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


def test_the_allowance_is_what_the_margin_pays_for():
    for positions in (1, 16, 64, 128, 1000, 20_000):
        examples = chunk(positions, 2**20, F32)
        if examples:
            assert examples * gamma(examples * positions + 8, F32) * most_spread(
                positions, examples, F32
            ) <= CHUNKED / 2 * (1 + 1e-12)
            assert most_spread(positions, examples, F32) >= 8
    assert chunk(64, 2**20, torch.float64) == 0
    assert gamma(2**30, F32) == math.inf


def test_batches_that_float64_could_not_add_are_refused():
    need_few(10**6, 500)
    with pytest.raises(InputError, match="summed safely"):
        need_few(10**6, 10**6)


def test_rows_that_do_not_fit_in_the_cache_are_still_one_addition():
    """Converted to float64 a few at a time, and added to the sum once: many additions would forbid large batches."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 2**17, generator=draw)
    block, total_P = RowsBlock([rows, -rows]), torch.zeros(2**17, dtype=torch.float64)
    atoms = {(0, 0): rows.double(), (0, 1): 2 * rows.double()}
    weights = {atom: torch.rand(7, dtype=torch.float64, generator=draw) for atom in atoms}
    assert block.add(weights, total_P, loose_B=torch.zeros(7, dtype=torch.bool)) == 1
    exact = sum(weight_B @ atoms[atom] for atom, weight_B in weights.items())
    assert torch.allclose(total_P, exact, rtol=1e-12, atol=1e-13)
    assert torch.allclose(block.measure({(0, 0): 1.0, (0, 1): 1.0}).square_B, 9 * rows.double().square().sum(1))


def test_tied_norms_that_are_taken_again():
    """Float64 products of both uses of a tied weight, and of the term between them."""
    torch.manual_seed(0)
    ids, ge, a, g = torch.randint(50, (4, 6)), torch.randn(4, 6, 8), torch.randn(4, 5, 8), torch.randn(4, 5, 50)
    lookup, outer = Lookup(ids, ge, 50), Outer(a, g)
    block = TiedBlock([lookup], [outer], [(0, 0)])
    rows = Lookup(ids, ge.double(), 50).rows() + Outer(a.double(), g.double()).rows()
    exact = rows.square().sum(1)
    again, first = block.precise({(0, 0): 1.0}, torch.arange(4)), block.measure({(0, 0): 1.0})
    assert torch.allclose(again, exact, rtol=1e-6)
    assert bool(((first.square_B - exact).abs() <= first.doubt_B + 1e-6 * exact).all())


@pytest.mark.parametrize("order", [None, Order(5, 8)], ids=["rows", "windows"])
def test_products_added_some_outputs_at_a_time(monkeypatch, order):
    """The tiles of a large layer: every output once, the last tile shorter, in the order of the parameter."""
    draw = torch.Generator().manual_seed(0)
    outers = [Outer(torch.randn(7, 1, 40, generator=draw), torch.randn(7, 1, 23, generator=draw)) for _ in range(2)]
    weights = {atom: torch.rand(7, generator=draw, dtype=torch.float64) for atom in ((0, 0), (0, 1))}
    block = OuterBlock(outers, [(0, 0), (0, 1)], order)
    rows = {atom: exact_rows(block, atom) for atom in weights}
    exact = sum(w_B @ rows[atom] for atom, w_B in weights.items())
    for tile in (1, 40, 5 * 40 + 3, 2**21):
        monkeypatch.setattr("dpsrm.gradients.ghost.products._TILE", tile)
        total = torch.ones(23 * 40, dtype=torch.float64)
        assert block.add(weights, total, loose_B=torch.zeros(7, dtype=torch.bool)) == 1
        assert torch.allclose(total - 1, (order or Order())(exact), rtol=0, atol=1e-12)


def test_a_large_model_is_run_in_few_pieces(monkeypatch):
    """As many numbers are recorded at once as there are parameters: each piece goes through all of these."""
    monkeypatch.setattr("dpsrm.gradients.ghost.sizes._CACHED", 100)
    seen = []
    real = GhostEngine._add
    monkeypatch.setattr(
        GhostEngine, "_add", lambda self, tally, batch, n: seen.append(n) or real(self, tally, batch, n)
    )
    objective = Objective.of(nn.Linear(30, 30, bias=False), _squared)
    GhostEngine(objective)(one_part(objective, 1.0), (torch.randn(60, 30), torch.randn(60)))
    assert seen == [15] * 4, "900 parameters, 60 numbers of each example"
