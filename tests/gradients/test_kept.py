"""Calls whose tensors vmap hands out at the end of a pass: the same sums, and whatever does not hold is noticed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import InputError, IsolationError
from dpsrm.gradients import GhostEngine, LoopEngine, Objective, Query
from dpsrm.gradients.batch import as_batch, example
from dpsrm.gradients.ghost.look import look
from gradients.ghost_cases import Wrapped, frozen, losses, query_of, relative_error
from gradients.layer_cases import weights

CHOSEN = {"how": "plain"}
"""How the module below runs; outside of it, so that twins do not forget it."""


def inside(m, x):
    """A layer inside of a gradient."""
    return torch.func.grad(lambda t: torch.tanh(F.linear(t, m.w)).sum())(x)


HOW = {
    "plain": lambda m, x: torch.tanh(F.linear(x, m.w)),
    "an output written into": lambda m, x: F.linear(x, m.w).tanh_() * 2,
    "an output written into twice": lambda m, x: F.linear(x, m.w).mul_(3).add_(x),
    "an input that was written into before": lambda m, x: F.linear((x + 1).mul_(2), m.w),
    "an input without examples": lambda m, x: x * F.linear(torch.ones(1, 4, dtype=x.dtype), m.w),
    "an output that nobody uses": lambda m, x: (F.linear(x, m.w), x * 2)[1],
    "examples behind": lambda m, x: F.linear(torch.vmap(lambda t: t * 2, in_dims=1, out_dims=1)(x), m.w),
    "used without a gradient": lambda m, x: torch.tanh(F.linear(x, m.w)) * F.linear(x, m.w).detach(),
}


def run(m, x):
    """The chosen way, and a second layer."""
    return F.linear(HOW[CHOSEN["how"]](m, x), m.v)


BIASED = {
    "trained layers": lambda m, x: m.last(torch.tanh(m.trained(x))),
    "frozen layers": lambda m, x: m.last(torch.tanh(m.frozen(m.frozen(m.trained(x))))),
    "frozen layers before": lambda m, x: m.last(m.trained(m.frozen(x))),
    "a frozen layer that is written into": lambda m, x: m.last(m.frozen(m.trained(x)).mul_(2)),
    "a trained layer that is written into": lambda m, x: m.last(m.trained(x).tanh_()),
    "addmm": lambda m, x: m.last(torch.addmm(m.frozen.bias, m.trained(x), m.frozen.weight)),
    "addmm, scaled": lambda m, x: m.last(torch.addmm(m.frozen.bias, m.trained(x), m.frozen.weight, alpha=2)),
    "by name": lambda m, x: F.linear(input=torch.tanh(m.trained(x)), weight=m.last.weight, bias=m.last.bias),
    "a bias that depends on the example, unlike the product": lambda m, x: m.last(
        F.linear(torch.ones(1, 4, dtype=x.dtype), m.frozen.weight, m.trained(x).squeeze(0))
    ),
}


@pytest.mark.parametrize("how", BIASED)
def test_a_bias_is_added_to_the_product_itself(how):
    """Under vmap, in trained and frozen layers; nobody has written into what comes out, so that it can be kept."""
    torch.manual_seed(1)
    made = Wrapped(BIASED[how], trained=nn.Linear(4, 4), frozen=frozen(nn.Linear(4, 4)), last=nn.Linear(4, 1))
    objective, batch = Objective.of(made, losses), batch_of(5)
    exact = Objective.of(copy.deepcopy(made).double(), losses)
    query = query_of(objective, "far", C1=0.3)
    engine = GhostEngine(objective, notice=pytest.fail)
    assert relative_error(engine(query, batch).secret, exact_answer(exact, query, batch)) <= 3e-4
    (found,) = engine._looks.values()
    assert bool(found.shown) == ("written into" in how)


def module():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return weights(run, w=(4, 4), v=(3, 4))


@pytest.fixture
def problem():
    CHOSEN["how"] = "plain"
    made = module()
    return Objective.of(made, losses), Objective.of(copy.deepcopy(made).double(), losses)


def batch_of(b):
    draw = torch.Generator().manual_seed(2)
    return torch.randn(b, 4, generator=draw), torch.randn(b, generator=draw)


def exact_answer(exact, query, batch):
    points = tuple(point_P.double() for point_P in query.points)
    return LoopEngine(exact)(Query(points=points, parts=query.parts), tuple(t.double() for t in batch)).secret


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_a_module_that_changes_after_the_first_look(problem, how, steady):
    """The first look sees the plain way; what comes later is noticed, and the sum is right all the same."""
    (objective, exact), batch = problem, batch_of(5)
    query = query_of(objective, "far", C1=0.3)
    engine = GhostEngine(objective, steady=steady, notice=lambda _: None)
    engine(query, batch)
    CHOSEN["how"] = how
    found = engine(query, batch).secret
    assert relative_error(found, exact_answer(exact, query, batch)) <= 3e-4
    assert torch.equal(engine(query, batch).secret, found)


def test_plain_layers_are_not_shown(problem):
    objective, _ = problem
    assert seen(objective).shown == frozenset()


def test_what_is_written_into_is_shown(problem):
    objective, _ = problem
    CHOSEN["how"] = "an output written into"
    assert seen(objective).shown == {("linear", ("w",), 0)}


def test_an_input_that_is_written_into_later_is_refused(problem):
    objective, _ = problem
    HOW["later"] = lambda m, x: (lambda h: (F.linear(h, m.w), h.add_(1))[0])(x * 2)
    CHOSEN["how"] = "later"
    with pytest.raises(InputError, match="must not be changed in place later"):
        GhostEngine(objective)(query_of(objective, "one"), batch_of(3))


@pytest.mark.parametrize("late", [True, False])
def test_a_layer_inside_of_a_gradient_is_noticed(problem, late):
    """At the first look `torch.func` takes over; later the pass is refused."""
    (objective, exact), batch, notes = problem, batch_of(3), []
    HOW["inside"], query = inside, query_of(objective, "one", C1=0.3)
    engine = GhostEngine(objective, notice=notes.append)
    if late:
        engine(query, batch)
    CHOSEN["how"] = "inside"
    if late:
        with pytest.raises(IsolationError, match="differentiates inside"):
            engine(query, batch)
    else:
        found = engine(query, batch).secret
        assert relative_error(found, exact_answer(exact, query, batch)) <= 2e-5
        assert "differentiates inside" in notes[0]


def seen(objective):
    """The first look at a module."""
    return look(objective, objective.layout.read(objective.module), as_batch(example(batch_of(1), 0)))
