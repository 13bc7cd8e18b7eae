"""Each example runs alone: whatever module and loss do to a batch, the result is the loop oracle's, or a refusal."""

import copy
import logging

import pytest
import torch
from torch import nn

from dpsrm.core.errors import DpsrmError, InputError, IsolationError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query, Way, clipped_losses
from dpsrm.gradients.features import freeze_features
from dpsrm.gradients.module_state import Twins
from gradients.ghost_cases import Wrapped, losses, relative_error
from gradients.isolation_cases import CASES, balanced, branching, centred, linear

EQUAL = [
    *("sort by length", "sorted dispatch", "flip", "mixup in forward", "in-batch negatives", "weight norm"),
    *("targets scaled by the batch", "balanced softmax", "spectral norm", "tied weights", "centred by the batch"),
    *("centred, detached", "cumulative sum", "rolled", "divided by the batch size", "attention across examples"),
    *("examples as positions", "batch norm in evaluation mode", "a bias made of the example"),
]
REFUSED = ["value-dependent branch", "packed LSTM", "functional batch norm"]
PUBLIC_TABLE = "docs/isolation.md"


def query_for(objective, *, clip=0.05):
    """DP-SRM's two parts at two points."""
    here_P = objective.layout.read(objective.module)
    there_P = here_P + 0.1 * torch.randn(len(here_P), generator=torch.Generator().manual_seed(1), dtype=here_P.dtype)
    parts = Part(coefficients=(1.0, -1.0), clip=clip, weight=0.5), Part(coefficients=(1.0, 0.0), clip=clip, weight=0.5)
    return Query(points=(here_P, there_P), parts=parts)


def case(name):
    """A case's objective, its float64 twin, and its records."""
    torch.manual_seed(3)
    make, loss, inputs = CASES[name]
    module = make()
    exact = Objective.of(copy.deepcopy(module).double(), loss, way=Way.LOOP)
    return Objective.of(module, loss), exact, inputs.clone(), torch.randn(len(inputs))


def oracle(exact, query, batch):
    """The float64 loop's answer."""
    inputs, targets = batch
    double = Query(points=tuple(p.double() for p in query.points), parts=query.parts)
    return LoopEngine(exact)(double, (inputs.double() if inputs.is_floating_point() else inputs, targets.double()))


def test_every_case_is_either_equal_or_refused():
    assert sorted(EQUAL + REFUSED) == sorted(CASES)


@pytest.mark.parametrize("engine", [GhostEngine, FunctionalEngine])
@pytest.mark.parametrize("name", EQUAL)
def test_equals_the_loop_oracle(name, engine):
    objective, exact, inputs, targets = case(name)
    query = query_for(objective)
    options = {"notice": lambda _: None} if engine is GhostEngine else {}
    if engine is FunctionalEngine and name == "balanced softmax":
        with pytest.raises(IsolationError, match="Three ways out"):
            engine(objective)(query, (inputs, targets))
        return
    found = engine(objective, **options)(query, (inputs, targets))
    assert relative_error(found.secret, oracle(exact, query, (inputs, targets)).secret) <= 2e-5


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("who", range(6))
def test_replacing_any_record_moves_the_sum_by_no_more_than_the_sensitivity(name, who):
    objective, _, inputs, targets = case(name)
    query, run = query_for(objective), GhostEngine(objective, notice=lambda _: None)
    before = run(query, (inputs, targets))
    other = inputs.clone(), targets.clone()
    other[0][who] = 50 * other[0][who] if inputs.is_floating_point() else (other[0][who] + 1) % 7
    other[1][who] = -100.0
    moved = float((run(query, other).secret - before.secret).norm())
    assert moved <= before.sensitivity(Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("engine", [GhostEngine, FunctionalEngine])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_alone_is_refused(name, engine):
    objective, _, inputs, targets = case(name)
    with pytest.raises(DpsrmError) as found:
        engine(objective)(query_for(objective), (inputs, targets))
    if isinstance(found.value, IsolationError):
        for way_out in ("rewrite the module", 'performance.engine = "loop"', 'privacy.isolation = "checked"'):
            assert way_out in str(found.value)
    else:
        assert "batch norm" in name


@pytest.mark.parametrize("name", EQUAL)
def test_losses_are_those_of_each_example_alone(name):
    objective, _, inputs, targets = case(name)
    theta_P = objective.layout.read(objective.module)
    together = objective.losses(theta_P, (inputs, targets))
    alone = torch.stack([objective.alone(theta_P, (x, y)) for x, y in zip(inputs, targets, strict=True)])
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_scores_of_candidates_cannot_couple_records():
    """DP-AGD's scores: one record moves each by at most the clip, also if the module centres its batch."""
    objective, _, inputs, targets = case("centred by the batch")
    theta_P = objective.layout.read(objective.module)
    other = inputs.clone()
    other[0] *= 1000
    before, after = (
        clipped_losses(objective, [theta_P], (x, targets), clip=3.0, offsets=[0.0]).secret[0] for x in (inputs, other)
    )
    assert abs(before - after) <= 3.0


def test_features_of_a_record_depend_on_no_other():
    trunk = centred(lambda x: x - x.mean(0)).requires_grad_(False)
    inputs = torch.randn(10, 4)
    other = inputs.clone()
    other[0] *= 100
    before, after = freeze_features(trunk, inputs, batch=4), freeze_features(trunk, other, batch=4)
    assert torch.equal(before[1:], after[1:])


class Trunk(nn.Module):
    """A trunk that keeps a running mean of what it sees, in a tensor that `state_dict` or an alias hides."""

    def __init__(self, name):
        super().__init__()
        self.register_buffer("left_out", torch.zeros(4), persistent=False)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.name, self.known = name, {"a buffer in a list": [self.left_out], "a parameter in a list": [self.frozen]}

    def forward(self, x):
        mean = self.known.get(self.name, [self.left_out])[0]
        mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - mean


@pytest.mark.parametrize("name", ["left out of state_dict", "a buffer in a list", "a parameter in a list"])
def test_a_trunk_that_remembers_forgets_every_record(name):
    """vmap refuses the write, so that records are run one after the other: each must begin on a copy of everything."""
    trunk, inputs = Trunk(name), torch.randn(6, 4)
    other = inputs.clone()
    other[0] = 1000.0
    before, after = freeze_features(trunk, inputs), freeze_features(trunk, other)
    assert (before != after).any(1).nonzero().flatten().tolist() == [0]
    assert not torch.cat([trunk.left_out, trunk.frozen]).any()


class Remembers(nn.Module):
    """Writes what it sees somewhere; `how(self, x)` says where."""

    def __init__(self, how):
        super().__init__()
        self.how, self.w = how, nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.plain, self.list = torch.zeros(4), []

    def forward(self, x):
        self.how(self, x)
        return self.w(x + self.seen + self.frozen + self.plain + sum(self.list[-1:]))


WRITES = {
    "a buffer": lambda m, x: m.seen.mul_(0.9).add_(x.detach().mean(0)),
    "a frozen parameter": lambda m, x: m.frozen.data.add_(x.detach().mean(0)),
    "a plain tensor": lambda m, x: m.plain.add_(x.detach().mean(0)),
    "a list": lambda m, x: m.list.append(x.detach().mean(0)),
    "an attribute": lambda m, x: setattr(m, "plain", 0.9 * m.plain + x.detach().mean(0)),
}


@pytest.mark.parametrize("way", [Way.VMAP, Way.LOOP])
@pytest.mark.parametrize("what", sorted(WRITES))
def test_nothing_a_record_writes_is_seen_again(what, way):
    module = Remembers(WRITES[what])
    before = copy.deepcopy(module.state_dict())
    objective = Objective.of(module, losses, way=way)
    theta_P, inputs, targets = objective.layout.read(module), torch.randn(5, 4), torch.randn(5)
    try:
        first = objective.losses(theta_P, (inputs, targets))
    except IsolationError:
        assert way is Way.VMAP
    else:
        other = inputs.clone()
        other[0] += 100
        assert torch.equal(objective.losses(theta_P, (other, targets))[1:], first[1:])
        assert torch.equal(objective.losses(theta_P, (inputs, targets)), first)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.list == []
    assert torch.equal(module.plain, torch.zeros(4))


def test_memory_outside_of_the_module_is_noticed():
    kept = {"mean": torch.zeros(3)}

    def loss(outputs, targets):
        kept["mean"] = 0.9 * kept["mean"] + outputs.detach()
        return losses(outputs - kept["mean"], targets)

    objective = Objective.of(nn.Linear(4, 3), loss)
    one, other = ((torch.randn(1, 4), torch.randn(1)) for _ in range(2))
    with pytest.raises(IsolationError, match="remember"):
        objective.refuse_memory(objective.layout.read(objective.module), one, other)


def test_a_loss_with_a_state_of_its_own_forgets_it():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, outputs, targets):
            self.mean.add_(outputs.detach().mean())
            return losses(outputs - self.mean, targets)

    loss = Counting()
    objective = Objective.of(nn.Linear(4, 3), loss, way=Way.LOOP)
    theta_P, inputs, targets = objective.layout.read(objective.module), torch.randn(3, 4), torch.randn(3)
    first = objective.losses(theta_P, (inputs, targets))
    assert torch.equal(objective.losses(theta_P, (inputs, targets)), first)
    assert float(loss.mean) == 0


def test_twins_share_nothing_that_changes():
    module = Remembers(lambda m, x: None)
    module.alias = [module.w]
    twins = Twins(module)
    one, two = twins.make(), twins.make()
    assert one.alias[0] is one.w is not two.w
    one.list.append(1)
    one.plain.add_(1)
    one.added = 3
    assert two.list == []
    assert float(two.plain.sum()) == 0
    assert not hasattr(twins.make(), "added")
    assert one.w.weight is module.w.weight, "parameters are passed by value, not copied here"


def test_a_module_that_cannot_be_copied_is_refused():
    module = nn.Linear(2, 2)
    module.lock = __import__("threading").Lock()
    with pytest.raises(IsolationError, match="cannot be copied"):
        Objective.of(module, losses)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_scripted_modules_are_refused():
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(InputError, match="scripted"):
        Twins(scripted)


def checked(module, loss=losses):
    return Objective.of(module, loss, way=Way.BATCH)


def test_checked_takes_what_vmap_cannot_and_equals_the_oracle():
    module = linear(lambda m, x: m.w(x) if bool(torch.isfinite(x).all()) else m.w(0 * x))
    inputs, targets = torch.randn(6, 4), torch.randn(6)
    with pytest.raises(IsolationError):
        GhostEngine(Objective.of(module, losses))(query_for(Objective.of(module, losses)), (inputs, targets))
    objective = checked(module)
    query = query_for(objective)
    exact = Objective.of(copy.deepcopy(module).double(), losses, way=Way.LOOP)
    found = GhostEngine(objective)(query, (inputs, targets))
    assert relative_error(found.secret, oracle(exact, query, (inputs, targets)).secret) <= 1e-5


@pytest.mark.parametrize(
    "name", ["sort by length", "centred by the batch", "targets scaled by the batch", "balanced softmax", "rolled"]
)
def test_checked_notices_what_treats_examples_together(name):
    torch.manual_seed(0)
    make, loss, inputs = CASES[name]
    objective = checked(make(), loss)
    run, inputs = GhostEngine(objective), 3 * inputs if name == "rolled" else inputs

    def many():
        for _ in range(20):
            run(query_for(objective, clip=1.0), (inputs, 5 * torch.randn(6)))

    with pytest.raises(IsolationError, match="alone"):
        many()


def test_checked_compares_losses_of_candidates():
    torch.manual_seed(0)
    objective = checked(linear(lambda m, x: m.w(x)), balanced)
    theta_P = objective.layout.read(objective.module)
    with pytest.raises(IsolationError, match="alone"):
        clipped_losses(objective, [theta_P], (torch.randn(6, 4), torch.randn(6)), clip=9.0, offsets=[0.0])


def test_checked_refuses_what_no_rule_covers():
    module = Wrapped(lambda m, x: m.w(x) * m.p.exp(), w=nn.Linear(4, 3), p=nn.Parameter(torch.zeros(3)))
    with pytest.raises(IsolationError, match="loop"):
        GhostEngine(checked(module))(query_for(checked(module)), (torch.randn(3, 4), torch.randn(3)))


def test_the_loop_takes_branches(caplog):
    objective = Objective.of(linear(branching), losses, way=Way.LOOP)
    with caplog.at_level(logging.WARNING):
        assert LoopEngine(objective)(query_for(objective), (torch.randn(3, 4), torch.randn(3))).rows == 3


def test_a_container_under_several_names_stays_one():
    """In the twin, too: short lists are copied quickly, and still only once."""
    module = nn.Linear(2, 1)
    module.first = module.second = [1]
    module.inside = [[module.first, torch.ones(1)]]
    twin = Twins(module).make()
    assert twin.first is twin.second is twin.inside[0][0]
    assert twin.first is not module.first
