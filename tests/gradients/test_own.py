"""Only registered names lead a pass to parameters and buffers: the user's own are neither run nor used nor written."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import DpsrmError, InputError, IsolationError
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query, as_losses
from dpsrm.gradients.own import _GUARD

ENGINES = [GhostEngine, FunctionalEngine, LoopEngine]


def loss(outputs, targets):
    return (outputs.squeeze(1) - targets).square()


class Net(nn.Module):
    """Reaches its parameter `w` and its layer `lin` as `setup` and `middle` say."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.ones(4, 3) * 0.3)
        self.register_buffer("mu", torch.zeros(3))
        self.lin, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
        self.setup()

    def setup(self):
        """Nothing else."""

    def middle(self, x):
        return F.linear(x, self.w) + self.lin(x)

    def forward(self, x):
        return self.out(torch.tanh(self.middle(x - self.mu)))


def answer(engine, module, of_losses=loss):
    objective = Objective.of(module, of_losses)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=1e9),))
    draw = torch.Generator().manual_seed(1)
    return engine(objective)(query, (torch.randn(8, 3, generator=draw), torch.randn(8, generator=draw))).secret


class Listed(Net):
    def setup(self):
        self.ws = [self.w]

    def middle(self, x):
        return F.linear(x, self.ws[0])


class Nested(Net):
    def setup(self):
        self.ws = {"all": (1, [self.w])}


class Partial(Net):
    def setup(self):
        self.f = functools.partial(F.linear, weight=self.w)


class Attribute(Net):
    def setup(self):
        self.__dict__["again"] = self.w


class Statistics(Net):
    def setup(self):
        self.stats = [self.mu]


@pytest.mark.parametrize("kind", [Listed, Nested, Partial, Attribute, Statistics])
def test_a_registered_tensor_in_an_attribute_is_refused(kind):
    with pytest.raises(InputError, match=r"registered name only.*getattr"):
        Objective.of(kind(), loss)


class RunsItself(Net):
    def setup(self):
        self.f = lambda x: self.lin(x)

    def middle(self, x):
        return self.f(x)


class UsesItself(Net):
    def setup(self):
        self.f = lambda x: F.linear(x, self.w)

    def middle(self, x):
        return self.f(x) + self.lin(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "words"), [(RunsItself, "records would touch"), (UsesItself, "own parameter w,")])
def test_a_closure_over_the_module_is_refused(engine, kind, words):
    with pytest.raises(IsolationError, match=words):
        answer(engine, kind())
    if engine is not LoopEngine:  # which needs gradients switched on
        with torch.no_grad(), pytest.raises(IsolationError, match=words):
            answer(engine, kind())


class Writes(Net):
    """A running mean, by a closure: the next example would see it."""

    def setup(self):
        def centred(x):
            with torch.no_grad():
                self.mu.mul_(0.9).add_(0.1 * x.mean(0))
            return x - self.mu

        self.centred = centred

    def middle(self, x):
        return self.lin(self.centred(x))


@pytest.mark.parametrize("engine", ENGINES)
def test_writing_into_the_users_own_buffer_is_refused(engine):
    with pytest.raises(IsolationError, match="own mu," if engine is LoopEngine else "vmap"):
        answer(engine, Writes())


class Scorer:
    """A loss with a method that may look at a model of its own."""

    def __init__(self, net, *, own):
        self.net, self.own = net, own

    def score(self, model, batch):
        return loss((self.net if self.own else model)(batch[0]), batch[1])


class Criterion(nn.Module):
    """A loss that is a module and holds another."""

    def __init__(self, net, *, own):
        super().__init__()
        self.net, self.own = net, own
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return self.scale * loss(outputs, targets) + (self.net.lin(torch.ones(1, 3)).sum() if self.own else 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_losses_that_run_a_part_of_the_users_module_are_refused(engine):
    net, wanted = Net(), answer(engine, Net())

    def of_closure(model, batch):
        return loss(model.out(torch.tanh(net.lin(batch[0]))), batch[1])

    wrong = [as_losses(of_closure), as_losses(Scorer(net, own=True).score), Criterion(net, own=True)]
    for each in wrong:
        with pytest.raises(IsolationError, match="records would touch"):
            answer(engine, net, each)
    right = [as_losses(Scorer(net, own=False).score), Criterion(net, own=False)]
    assert all(torch.allclose(answer(engine, net, each), wanted) for each in right)


class Tuned(Net):
    """Its criterion is a part of it, with a parameter that is trained."""

    def setup(self):
        self.criterion = Criterion(nn.Identity(), own=False)


def test_a_loss_that_is_a_trained_part_of_the_module_is_refused():
    net = Tuned()
    with pytest.raises(IsolationError, match="given"):
        answer(GhostEngine, net, net.criterion)
    net.criterion.requires_grad_(False)
    assert torch.allclose(answer(GhostEngine, net, net.criterion), answer(GhostEngine, Net()))


def test_compiled_modules_are_refused():
    for module in (torch.compile(Net(), backend="eager"), nn.Sequential(torch.compile(Net(), backend="eager"))):
        with pytest.raises(InputError, match=r"before torch\.compile"):
            Objective.of(module, loss)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_compiled_in_place_runs_uncompiled(engine):
    net = Net()
    net.compile(backend="eager")
    assert torch.allclose(answer(engine, net), answer(engine, Net()))


@pytest.mark.parametrize("engine", ENGINES)
def test_recurrent_layers_keep_lists_of_weights_that_follow_the_names(engine):
    """torch fills `_flat_weights` anew: at another θ, the gradients are those of that θ."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn = nn.GRU(3, 2, batch_first=True)

        def forward(self, x):
            return self.rnn(x[:, None, :])[0][:, 0, :1]

    module, other = Recurrent(), Recurrent()
    objective = Objective.of(module, loss)
    x, y = torch.randn(4, 3), torch.randn(4)
    point_P = 2 * objective.theta()
    objective.layout.write(other, point_P)
    exact = torch.autograd.grad(loss(other(x), y).sum(), list(other.parameters()))
    query = Query(points=(point_P,), parts=(Part(coefficients=(1.0,), clip=1e9),))
    found = engine(objective)(query, (x, y)).secret
    assert torch.allclose(found.float(), torch.cat([g.reshape(-1) for g in exact]), atol=1e-5)


def test_the_users_module_runs_again_after_a_pass():
    net, hooked = Net(), []
    net.lin.register_forward_pre_hook(lambda *_: hooked.append(1))
    keys = copy.copy(list(net.lin._forward_pre_hooks))
    answer(GhostEngine, net)
    with pytest.raises(DpsrmError):
        answer(GhostEngine, net, as_losses(lambda model, batch: loss(net(batch[0]), batch[1])))
    assert list(net.lin._forward_pre_hooks) == keys
    assert all(_GUARD not in module._forward_pre_hooks for module in net.modules())
    net(torch.randn(2, 3))


def test_a_trained_parameter_has_memory_of_its_own():
    """Two of them in one memory: the published model was not the one that was trained (a loss of 1.095, not 1.089)."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    net[1].weight.data = net[0].weight.data
    for trained in ([True, True], [True, False], [False, True]):
        for layer, trains in zip(net, trained, strict=False):
            layer.requires_grad_(trains)
        with pytest.raises(InputError, match="memory of its own"):
            Objective.of(net, loss)
    Objective.of(net[:2].requires_grad_(False).append(net[2]), loss)
    net[1].weight = net[0].weight
    Objective.of(net.requires_grad_(True), loss)
