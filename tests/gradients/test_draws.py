"""What an example draws in the loop: its own, whatever the others draw, and the same at every point."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from dpsrm.core.errors import IsolationError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import ModelLosses, Objective, Part, Query, Way, clipped_losses, engine, losses
from dpsrm.gradients.places import Draws
from dpsrm.gradients.torch_state import rng_states


class Greedy(nn.Module):
    """An example with large numbers draws more than others do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 16), nn.Linear(16, 2)

    def forward(self, x):
        x = F.dropout(x, 0.5) if x.abs().max() > 5 else x
        return self.last(F.dropout(torch.tanh(self.first(x)), 0.5))


class Packed(nn.Module):
    """How much dropout between two layers draws depends on a sequence's length, which is one of the inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.steps, self.last = nn.LSTM(3, 8, 2, dropout=0.5, batch_first=True), nn.Linear(8, 2)
        for parameter in self.parameters():
            parameter.data.mul_(4)

    def forward(self, x):
        inputs, lengths = x[:, :-1].view(-1, 10, 3), x[:, -1].long()
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        return self.last(self.steps(packed)[1][0][-1])


def greedy():
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    return Greedy(), x, torch.cat([torch.full((1, 5), 100.0), x[1:]])


def packed():
    draw = torch.Generator().manual_seed(1)
    x = torch.cat([torch.randn(64, 30, generator=draw), torch.randint(3, 11, (64, 1), generator=draw)], dim=1)
    return Packed(), x, torch.cat([torch.cat([x[:1, :-1], torch.full((1, 1), 2.0)], dim=1), x[1:]])


def asked(make):
    module, before, after = make()
    targets = torch.arange(64) % 2
    objective = Objective.of(module, nn.CrossEntropyLoss(reduction="none"), way=Way.LOOP)
    return objective, (before, targets), (after, targets)


@pytest.mark.parametrize("make", [greedy, packed])
def test_how_much_one_record_draws_moves_nobody_else(make):
    objective, before, after = asked(make)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=0.1),))
    sums = []
    for batch in (before, after):
        torch.manual_seed(7)
        sums.append(engine("loop", objective, steady=True)(query, batch))
    far = float((sums[0].secret - sums[1].secret).norm())
    assert 0 < far <= sums[0].sensitivity(Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("make", [greedy, packed])
@pytest.mark.parametrize("rows", [4096, 3, 1])
def test_nor_anybodys_loss(make, rows, monkeypatch):
    """Also of examples in pieces that come after it."""
    monkeypatch.setattr(losses, "_ROWS", rows)
    objective, before, after = asked(make)
    found = []
    for batch in (before, after):
        torch.manual_seed(7)
        found.append(torch.cat(list(losses._pieces(objective, objective.theta(), batch, steady=True))))
    assert torch.equal(found[0][1:], found[1][1:])
    assert found[0][0] != found[1][0]


def drawn(count, *, steady):
    """The first number that each of `count` examples draws, if the k-th then draws k more."""
    torch.manual_seed(3)
    return [torch.rand(1 + place)[0].item() for place in Draws(steady=steady).each(count)]


def test_examples_draw_by_the_beginning_and_their_place():
    first = drawn(40, steady=True)
    assert len(set(first)) == 40
    assert drawn(30, steady=True) == first[:30]
    torch.manual_seed(4)
    assert [torch.rand(1).item() for _ in Draws(steady=True).each(40)] != first
    assert len(set(drawn(5, steady=False))) == 1


def test_afterwards_the_generators_stand_where_no_example_put_them():
    ends = []
    for size in (1, 100):
        torch.manual_seed(3)
        begin = rng_states()[0]
        for _ in Draws(steady=True).each(3):
            torch.rand(size)
        ends.append(rng_states()[0])
        assert not torch.equal(ends[-1], begin)
    assert torch.equal(*ends)


def test_all_points_of_an_example_draw_the_same():
    """The difference of a point and itself is zero, and so is that of its scores."""
    objective, batch, _ = asked(packed)
    theta_P = objective.theta()
    query = Query(points=(theta_P, theta_P.clone()), parts=(Part(coefficients=(1.0, -1.0), clip=1.0),))
    assert not engine("loop", objective, steady=True)(query, batch).secret.any()
    one, other = clipped_losses(objective, [theta_P, theta_P], batch, clip=9.0, offsets=[0.0, 0.0]).secret
    assert one == other


def test_examples_draw_other_numbers():
    """Copies of one example do not share a mask where places are steady."""
    objective = Objective.of(
        nn.Linear(30, 1), ModelLosses(lambda model, x: model(F.dropout(x, 0.5)).squeeze(1)), way=Way.LOOP
    )
    assert len(set(objective.losses(objective.theta(), torch.ones(9, 30)).tolist())) == 9


class Uneven(nn.Module):
    """Draws by trying until one fits, as often as an example's values ask for."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.draw, self.last = draw, nn.Linear(5, 1)

    def forward(self, x):
        z = self.draw(x.abs() * 20 + 0.1)
        return self.last(z - z.mean()).squeeze(1)


UNEVEN = {
    "gamma": torch._standard_gamma,
    "poisson": torch.poisson,
    "binomial": lambda z: torch.binomial(torch.full_like(z, 50.0), z / (z + 1)),
    "distribution": lambda z: torch.distributions.Gamma(z, 1.0, validate_args=False).rsample(),
}


@pytest.mark.parametrize("draw", UNEVEN.values(), ids=UNEVEN)
@pytest.mark.parametrize("name", ["ghost", "functional", "loop"])
def test_draws_by_trial_are_left_to_the_loop(draw, name):
    """Under vmap the next example would begin where the one before it had found what fits."""
    objective = Objective.of(Uneven(draw), lambda outputs, targets: outputs * targets)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=0.1),))
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))
    other = torch.cat([torch.full((1, 5), 0.001), x[1:]])
    if name != "loop":
        with pytest.raises(IsolationError, match='engine = "loop"'):
            engine(name, objective, steady=True)(query, (x, torch.ones(200)))
        return
    sums = []
    for inputs in (x, other):
        torch.manual_seed(5)
        sums.append(engine(name, objective, steady=True)(query, (inputs, torch.ones(200))))
    assert 0 < float((sums[0].secret - sums[1].secret).norm()) <= sums[0].sensitivity(Adjacency.REPLACE_ONE)
