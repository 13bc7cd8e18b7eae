"""Where a neighbouring dataset shifts all places: one record added or removed, or moved to a group of another shape."""

import math

import pytest
import torch
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.core.tree import Bundles, Ragged
from dpsrm.data.datasets import merged
from dpsrm.gradients import LinearEngine, ModelLosses, Objective, Part, Query, binary_loss, clipped_losses, engine
from dpsrm.gradients.batch import kind, rows
from dpsrm.gradients.features import freeze_features
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost import GhostEngine, lengths
from dpsrm.gradients.ghost import engine as ghost
from dpsrm.gradients.ghost.blocks import LookupBlock, Measure, RowsBlock
from dpsrm.gradients.ghost.products import OuterBlock
from dpsrm.gradients.ghost.rounding import FEW_PIECES, SHIFTING, at_once, gamma
from dpsrm.gradients.ghost.terms import Lookup, Outer
from dpsrm.gradients.places import placeless
from dpsrm.gradients.query import MOST_EXAMPLES
from dpsrm.gradients.rows import Tally

ENGINES = ("ghost", "functional", "loop")


class Chaos(nn.Module):
    """Rounding in the first layer decides the rest: other bits there, and the gradient points elsewhere."""

    def __init__(self, *, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.drop, self.last = nn.Linear(300, 40), nn.Dropout(drop), nn.Linear(40, 1)

    def forward(self, x):
        return self.last(self.drop(torch.sin((1.0 if self.drop.p else 1e7) * self.first(x)))).squeeze(-1)


def weighed(out, y):
    return (out * y).flatten(1).sum(1) if out.dim() > 1 else out * y


def asked(objective, *, clip=1e-3):
    here_P = objective.layout.read(objective.module)
    parts = Part(coefficients=(1.0, -1.0), clip=clip, weight=0.5), Part(coefficients=(1.0, 0.0), clip=clip, weight=0.5)
    return Query(points=(here_P, here_P + 1e-3), parts=parts)


def moved(run, query, batch, fewer):
    before = run(query, batch)
    return float((run(query, fewer).secret - before.secret).norm()) / before.sensitivity(Adjacency.ADD_REMOVE)


def records(count, length=300):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, length, generator=draw), torch.ones(count)


def _rounds_by_place(layer, x):
    """Whether this machine computes three rows to other bits than the same three of four; not every one does."""
    with torch.no_grad():
        return not torch.equal(layer(x)[1:], layer(x[1:]))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_the_first_record_can_go(name, drop):
    """Three are left of four: other kernels, other places, other random numbers; only the sum's own term may go."""
    objective = Objective.of(Chaos(drop=drop), weighed)
    batch, query = records(4), asked(objective)

    def run(query, batch, *, steady=False):
        torch.manual_seed(3)
        return engine(name, objective, steady=steady)(query, batch)

    assert moved(run, query, batch, rows(batch, slice(1, None))) <= 1
    if drop or (name != "loop" and _rounds_by_place(objective.module.first, batch[0])):
        there = run(query, rows(batch, slice(1, None)), steady=True).secret
        far = float((run(query, batch, steady=True).secret - there).norm())
        assert far > 1.2e-3, "places that are taken for steady would not do"


@pytest.mark.parametrize("name", ENGINES)
def test_a_record_can_be_replaced_by_a_longer_one(name):
    """It moves to another group, and all that stand behind it there and here shift."""

    class Sum(Chaos):
        def forward(self, x):
            return super().forward(x).sum(-1)

    objective = Objective.of(Sum(drop=0.5), weighed)
    (short, ones), long, silent = records(4), torch.randn(3, 5, 300), torch.tensor([0.0, 1.0, 1.0])
    before = Ragged(((short[:, None], torch.cat([silent, ones[:1]])), (long[1:], ones[:2])))
    after = Ragged(((short[1:, None], ones[:3]), (long, silent)))
    query, sums, scores = asked(objective), [], []
    for batch in (before, after):
        torch.manual_seed(3)
        sums.append(engine(name, objective)(query, batch))
        torch.manual_seed(3)
        scores.append(clipped_losses(objective, query.points, batch, clip=9.0, offsets=[5.0, 5.0]).secret)
    assert sums[0].rows == sums[1].rows == 6
    assert torch.allclose(sums[0].secret, sums[1].secret, rtol=0, atol=1e-12), "the record has no gradient in either"
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


class Kinds(nn.Module):
    """Records with "plain", or of whole numbers, are multiplied by themselves; of others rounding decides."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.v = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(5, 7))

    def forward(self, batch):
        ((name, x),) = batch.items()
        if name == "plain" or not x.is_floating_point():
            return (self.w * x[:, :1]).sum(1)
        h = torch.linalg.vector_norm(x @ self.v @ self.v.t(), dim=1)
        return h + self.w.sum() * torch.sin(1e8 * h)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("other", [{"plain": torch.ones(1, 5)}, {"x": torch.ones(1, 5, dtype=torch.long)}])
def test_the_kind_of_one_record_does_not_choose_everybodys_pieces(name, other):
    """All shapes are equal: another name, or another type, and the first record's kind comes first."""
    objective = Objective.of(Kinds(), ModelLosses(lambda model, batch: model(batch)))
    query = asked(objective, clip=1.0)
    others = [{"x": each[None]} for each in records(60, 5)[0]]
    sums, scores = [], []
    for first in (other, {"x": torch.ones(1, 5)}):
        objective = Objective.of(objective.module, objective.loss)
        batch = merged([first, *others, other])
        sums.append(engine(name, objective, steady=False)(query, batch))
        scores.append(clipped_losses(objective, query.points[:1], batch, clip=2.0, offsets=[0.0]).secret[0])
    far = float((sums[0].secret - sums[1].secret).norm())
    assert far <= sums[0].sensitivity(Adjacency.REPLACE_ONE)
    assert abs(scores[0] - scores[1]) <= 2.0


def test_kinds_are_told_apart_by_all_that_code_can_see():
    one, two = torch.ones(4, 3), torch.ones(4)
    alike = [{"a": one, "b": two}, {"a": one[:2] + 1, "b": two[:2]}]
    others = [
        {"b": two, "a": one},
        {"a": one, "c": two},
        {"a": one.double(), "b": two},
        {"a": one, "b": two.long()},
        {"a": one[:, :2], "b": two},
        {"a": {"b": one}, "c": two},
        {"a": one, "b": two, "c": None},
        {1: one, 2: two},
        {True: one, 2: two},
        (one, two),
        [one, two],
        Bundles(one, two),
    ]
    assert len({kind(batch) for batch in alike}) == 1
    assert len({kind(batch) for batch in [*alike, *others]}) == 1 + len(others)


@pytest.mark.parametrize("name", ["ghost", "functional"])
def test_random_layers_draw_the_same_for_all(name):
    """Otherwise copies of an example would differ, and pieces would have one example."""
    run = engine(name, Objective.of(Chaos(drop=0.5), weighed), steady=False)
    run(asked(run.objective), records(4))
    assert list(run._sizes.values()) == [64]


def test_tiny_records_of_which_the_first_goes():
    """3·10^5 records of cancelling positions: the sums differ by what the first record gives, and no more."""
    n, objective = 3 * 10**5, Objective.of(nn.Linear(2, 1, bias=False), weighed)
    inputs = torch.tensor([[[1.0, 0.3], [-0.99, 0.1], [0.4, -0.2]], [[-0.7, 0.9], [0.7, -0.8], [0.1, 0.1]]])
    inputs, targets = inputs.repeat(n // 2, 1, 1), torch.ones(n, 1, 1)
    here_P = objective.layout.read(objective.module)
    query = Query(points=(here_P,), parts=(Part(coefficients=(1.0,), clip=0.1),))
    run = engine("ghost", objective, steady=False, expected=2**14)
    found = moved(run, query, (inputs, targets), (inputs[1:], targets[1:]))
    assert 1 - 2 * SHIFTING <= found <= 1


@pytest.mark.parametrize(("T", "D"), [(16, 130), (64, 160), (1, 40)])
def test_each_examples_share_of_the_error_is_within_the_proof(T, D):
    """The whole sum's error, if there were as many examples as are allowed, is within an eighth of the margin."""
    draw, B = torch.Generator().manual_seed(0), 22
    outers = [Outer(*(torch.randn(B, T, D, generator=draw) for _ in range(2))) for _ in range(2)]
    block = OuterBlock(outers, [(0, 0), (0, 1)], steady=False)
    spread_B = block.measure({(0, 0): 1.0, (0, 1): 1.0}).spread_B.sqrt()
    weights = dict.fromkeys(((0, 0), (0, 1)), 1 / spread_B)
    total_P = torch.zeros(D * D, dtype=torch.float64)
    loose_B = torch.ones(B) > block.most_spread
    block.add(weights, total_P, loose_B=loose_B)
    exact = torch.zeros(D * D, dtype=torch.float64)
    for atom, weight_B in weights.items():
        for left, right in block.factors({atom: 1.0}).items():
            ((symbol, c),) = right.items()
            l_BTI, r_BTO = block.left[left].double(), block.right[symbol].double()
            exact += torch.einsum("b,bto,bti->oi", c * weight_B, r_BTO, l_BTI).flatten()
    assert float((total_P - exact).norm()) <= SHIFTING / 8 * B / MOST_EXAMPLES / FEW_PIECES


def test_as_many_at_once_as_the_margin_pays_for():
    for positions in (1, 2, 64, 128, 2000):
        size = at_once(positions, steady=False)
        assert MOST_EXAMPLES * FEW_PIECES * gamma(size * positions + 8) <= SHIFTING / 8
    with pytest.raises(InputError, match="too many positions"):
        at_once(2100, steady=False)


def test_contributions_leave_room_for_the_rounding_of_the_whole_sum():
    objective = Objective.of(nn.Linear(3, 1), weighed)
    one = GhostEngine(objective, steady=False)(asked(objective, clip=1e-6), (torch.ones(1, 3), torch.ones(1, 1)))
    assert 1 - 2 * SHIFTING <= float(one.secret.norm()) / (one.bound / 2) <= 1 - SHIFTING


def test_what_cancels_much_is_scaled_down():
    one = torch.ones(1, dtype=torch.float64)
    measure, part = Measure(one, 0 * one, one * 1e6), Part(coefficients=(1.0,), clip=1.0)
    for steady, most in ((True, 1000.0), (False, FEW_PIECES)):
        found = lengths._length(one, measure, part, one > 0, margin=0.0, steady=steady)
        assert float(found.pieces_B) == pytest.approx(most)


def test_norms_are_taken_again_for_all_examples_or_none():
    seen = []

    class Doubtful(RowsBlock):
        def precise(self, part, rows):
            seen.append(len(rows))
            return super().precise(part, rows)

    block = Doubtful([torch.eye(3)])
    measure = Measure(torch.ones(3).double(), torch.tensor([1.0, 0.0, 0.0]).double(), torch.ones(3).double())
    part = Part(coefficients=(1.0,), clip=0.1)
    uppers = [lengths._upper(measure, {(0, 0): 1.0}, [block], part, steady=steady) for steady in (True, False)]
    assert seen == [1, 3]
    assert torch.equal(*uppers)


def test_an_example_adds_to_a_word_once():
    """Two atoms that cancel, 10^8 times longer than their sum: alone they would swell the sum they pass through."""
    B, draw = 2000, torch.Generator().manual_seed(0)
    ids, g = torch.zeros(B, 1, dtype=torch.long), 1e8 * torch.rand(B, 1, 4, generator=draw)
    block = LookupBlock([Lookup(ids, g, 3), Lookup(ids, 2 * g, 3)])
    total_P, one_B = torch.zeros(12, dtype=torch.float64), torch.ones(B, dtype=torch.float64)
    weights = {(0, 0): one_B, (0, 1): one_B * (1 - 2.0**-20)}
    assert block.add(weights, total_P, loose_B=one_B > 1) == B
    exact = [math.fsum(column) for column in (2.0**-20 * g[:, 0].double()).T.tolist()]
    assert total_P[:4].tolist() == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("name", ["ghost", "functional"])
def test_what_fills_a_piece_up_counts_for_nothing(name):
    objective = Objective.of(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)), weighed)
    inputs, targets = records(70, 5)
    inputs[3], inputs[69] = math.nan, math.inf
    query = asked(objective, clip=0.5)
    steady, not_ = (engine(name, objective, steady=s)(query, (inputs, targets[:, None])) for s in (True, False))
    assert (steady.rows, steady.diagnostics.nonfinite) == (not_.rows, not_.diagnostics.nonfinite) == (70, 2)
    assert steady.diagnostics.clipped == not_.diagnostics.clipped
    assert steady.diagnostics.loss == pytest.approx(not_.diagnostics.loss)
    assert torch.allclose(steady.secret, not_.secret, rtol=2 * SHIFTING, atol=1e-6)
    assert engine(name, objective, steady=False)(query, (inputs[:0], targets[:0, None])).rows == 0


def test_equal_rows_are_equal_to_the_bit():
    assert placeless([torch.full((3, 2), math.nan), torch.ones(3)])
    assert not placeless([torch.ones(3), torch.tensor([[1.0], [1.0], [1.0 + 2**-20]])])


def test_where_places_matter_examples_are_run_one_by_one(monkeypatch):
    objective = Objective.of(nn.Linear(3, 1), weighed)
    batch, query, said = (torch.ones(4, 3), torch.ones(4, 1)), asked(objective), []

    def uneven(mixture, found, losses_B):
        none = torch.zeros(len(losses_B)).double()
        return [Measure(torch.arange(len(losses_B)).double(), none, none) for _ in mixture.parts]

    monkeypatch.setattr(ghost, "measure_parts", uneven)
    run = GhostEngine(objective, steady=False, notice=said.append)
    run(query, batch)
    run(query, batch)
    assert list(run._sizes.values()) == [1]
    assert len(said) == 1
    monkeypatch.setattr(FunctionalEngine, "_rows", lambda *_, **__: (torch.arange(64.0)[:, None], torch.ones(64)))
    assert FunctionalEngine(objective, steady=False)._size(query, batch) == 1


def test_pieces_have_a_public_size(monkeypatch):
    objective, sizes = Objective.of(nn.Linear(3, 1), weighed), []
    add = Tally.add

    def counted(self, gradients, losses_B, *, real):
        sizes.append(len(losses_B))
        add(self, gradients, losses_B, real=real)

    monkeypatch.setattr(Tally, "add", counted)
    for settings in ({}, {"expected": 9}, {"max_physical_batch": 5}):
        for count in (3, 7):
            run = engine("functional", objective, steady=False, **settings)
            run(asked(objective), (torch.ones(count, 3), torch.ones(count, 1)))
    assert sizes == [64, 64, 9, 9, 5, 5, 5]


def test_the_linear_margin_does_not_tell_the_number_of_records():
    objective = Objective.of(nn.Linear(3, 1), binary_loss)
    for steady, equal in ((False, True), (True, False)):
        margins = [
            engine("linear", objective, steady=steady).over(torch.ones(n, 3), torch.zeros(n)).margin(2)
            for n in (1000, 1001)
        ]
        assert (margins[0] == margins[1]) is equal
    assert LinearEngine(objective, population=9, steady=False).over(torch.ones(5, 3), torch.zeros(5)).margin(2) < 1e-5


def test_the_loop_counts_the_additions_of_every_part():
    objective = Objective.of(nn.Linear(1, 1), weighed)
    with pytest.raises(InputError, match="summed safely"):
        engine("loop", objective)(asked(objective), (torch.ones(40_000, 1), torch.ones(40_000, 1)))


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_losses_keep_when_the_first_record_goes(drop):
    objective = Objective.of(Chaos(drop=drop), lambda out, y: weighed(out, y) + 10)
    batch, here_P = records(4), objective.layout.read(objective.module)

    def score(batch):
        torch.manual_seed(3)
        return clipped_losses(objective, [here_P], batch, clip=20.0, offsets=[0.0], steady=False).secret[0]

    ones = [score(rows(batch, slice(i, i + 1))) for i in range(4)]
    assert score(batch) == math.fsum(ones)
    assert score(rows(batch, slice(1, None))) == math.fsum(ones[1:])


def test_features_keep_when_the_first_record_goes():
    trunk = Chaos().requires_grad_(False).eval()
    inputs, _ = records(9)
    assert torch.equal(freeze_features(trunk, inputs, batch=8)[1:], freeze_features(trunk, inputs[1:], batch=8))
