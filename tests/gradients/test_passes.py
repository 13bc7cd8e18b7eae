"""A module that holds other parameters for a while: as `torch.func.functional_call` has it, and its own again after."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query, Way
from dpsrm.gradients.passes import _holding


class Net(nn.Module):
    """A layer used under two names, a weight tied to another, a buffer, and a bias that is not there."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = self.first
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.last(torch.tanh(self.again(self.norm(self.first(x)))))


def others(module):
    """Other values of everything that has a name."""
    draw = torch.Generator().manual_seed(1)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    floats = {name: value for name, value in named.items() if value.is_floating_point()}
    return {name: torch.rand(value.shape, generator=draw) + 0.5 for name, value in floats.items()}


def held(module):
    """Every tensor of every module, by its owner and name."""
    members = [(owner, each) for owner in module.modules() for each in (owner._parameters, owner._buffers)]
    return {(id(owner), name): value for owner, each in members for name, value in each.items()}


def test_other_values_under_every_name():
    """The shared layer, the tied weight, which has no name of its own, and the buffers: all others."""
    module, x = Net().eval(), torch.randn(5, 3)
    values, before = others(module), held(module)
    assert "last.weight" not in values
    wanted = functional_call(copy.deepcopy(module), values, (x,))  # a copy: it loses the tie afterwards
    with _holding(module, values):
        assert module.last.weight is values["first.weight"]
        assert torch.equal(module(x), wanted)
    after = held(module)
    assert all(after[place] is value for place, value in before.items())
    assert not torch.equal(module(x), wanted)


def test_what_is_not_named_stays():
    module = Net()
    with _holding(module, {"norm.bias": torch.ones(3)}):
        assert module.first.weight is module.last.weight
        assert module.first.weight.requires_grad
        assert float(module.norm.bias.sum()) == 3


def test_an_error_inside_gives_the_values_back():
    module = Net()
    before = held(module)
    with pytest.raises(ZeroDivisionError), _holding(module, others(module)):
        _ = 1 / 0
    after = held(module)
    assert all(after[place] is value for place, value in before.items())


@pytest.mark.parametrize("engine", [GhostEngine, FunctionalEngine, LoopEngine])
def test_what_parametrizations_keep_is_not_used(engine):
    """A pass at another point took the weights of the one before: sums were off by 1.6 of themselves."""
    layer, x = parametrizations.weight_norm(nn.Linear(3, 2)), torch.randn(5, 3)
    way = Way.LOOP if engine is LoopEngine else Way.VMAP
    objective = Objective.of(layer, lambda outputs, _: outputs.square().sum(1), way=way)
    points = [objective.theta() + 0.3 * step for step in range(4)]

    def asked():
        made = engine(objective)
        parts = (Part(coefficients=(1.0,), clip=1.0),)
        return torch.stack([made(Query(points=(point_P,), parts=parts), (x, x)).secret for point_P in points])

    expected = asked()
    with parametrize.cached():
        assert torch.equal(asked(), expected)
