"""Every rule of the ghost engine equals the float64 loop oracle, and no contribution exceeds its clip."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpsrm.gradients import FunctionalEngine, GhostEngine, Objective
from gradients.ghost_cases import CASES, losses, oracle, problem, query_of, relative_error, twin

KINDS = ("one", "near", "far")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def norms(objective, query, inputs, targets):
    """A clip in the middle of the examples' norms, per part."""
    found = []
    for index in range(len(query.parts)):
        one = [float(alone(objective, query, index, inputs[i : i + 1], targets[i : i + 1])) for i in range(len(inputs))]
        found.append(sorted(one)[len(one) // 2])
    return found


def alone(objective, query, index, inputs, targets):
    """The norm of one part of one example, unclipped."""
    part = replace(query.parts[index], clip=1e12, weight=1.0)
    return oracle(objective, replace(query, parts=(part,)), (inputs, targets)).secret.norm()


@pytest.mark.parametrize("b", [0, 1, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_float64_oracle(name, kind, b):
    objective, exact, inputs, targets = problem(name, b)
    loose = query_of(objective, kind)
    clips = norms(exact, loose, inputs, targets) if b else [1.0, 1.0]
    query = query_of(objective, kind, C1=clips[-1] * 1.01, C2=clips[0] * 1.01)
    fast, slow = GhostEngine(objective)(query, (inputs, targets)), oracle(exact, query, (inputs, targets))
    assert relative_error(fast.secret, slow.secret) <= 1e-5
    assert (fast.bound, fast.rows, fast.diagnostics.clipped) == (slow.bound, b, slow.diagnostics.clipped)
    assert fast.diagnostics.loss == pytest.approx(slow.diagnostics.loss, rel=1e-5, abs=1e-9)
    assert fast.diagnostics.nonfinite == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_no_contribution_exceeds_its_clip(name, kind):
    objective, exact, inputs, targets = problem(name, 7)
    loose = query_of(objective, kind, only_difference=True)
    (clip,) = norms(exact, loose, inputs, targets)
    query = query_of(objective, kind, C1=clip / 2, C2=clip / 2, only_difference=True)
    engine = GhostEngine(objective)
    for i in range(7):
        found = engine(query, (inputs[i : i + 1], targets[i : i + 1]))
        length = float(found.secret.norm())
        assert length <= query.bound * (1 + 1e-6)
        if found.diagnostics.clipped == (1.0,):
            assert length >= query.bound * (1 - 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_difference_alone_is_exact_in_float64_and_no_worse_than_its_gradients_in_float32(name):
    objective, exact, inputs, targets = problem(name, 3)
    query = query_of(objective, "near", C1=1e9, C2=1e9, only_difference=True)
    slow = oracle(exact, query, (inputs, targets)).secret
    gradient = oracle(exact, query_of(objective, "one", C1=1e9), (inputs, targets)).secret
    double = query_of(exact, "near", C1=1e9, C2=1e9, only_difference=True)
    points = inputs.double() if inputs.is_floating_point() else inputs
    expected = oracle(exact, double, (inputs, targets)).secret
    assert relative_error(GhostEngine(exact)(double, (points, targets)).secret, expected) <= 1e-9
    error = float((GhostEngine(objective)(query, (inputs, targets)).secret - slow).norm())
    assert error <= 2e-6 * float(gradient.norm())


@pytest.mark.parametrize("name", ["conv2d", "encoder", "tied", "prelu"])
def test_pieces_give_the_same_sum(name):
    objective, _, inputs, targets = problem(name, 7)
    query = query_of(objective, "far", C1=0.1)
    whole = GhostEngine(objective, max_physical_batch=7)(query, (inputs, targets))
    for size in (1, 3, None):
        pieces = GhostEngine(objective, max_physical_batch=size)(query, (inputs, targets))
        assert relative_error(pieces.secret, whole.secret) <= 1e-6
        assert pieces.diagnostics.clipped == whole.diagnostics.clipped


def check(module, inputs, distance):
    """Equality with the oracle, with and without clipping."""
    objective, exact = Objective.of(module, losses), twin(module)
    targets = torch.randn(len(inputs))
    for C1 in (1e9, 1e-2):
        query = query_of(objective, distance, C1=C1)
        fast, slow = GhostEngine(objective)(query, (inputs, targets)), oracle(exact, query, (inputs, targets))
        assert relative_error(fast.secret, slow.secret) <= 1e-5
        assert float(GhostEngine(objective)(query, (inputs[:1], targets[:1])).secret.norm()) <= query.bound * (1 + 1e-6)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    leading=st.lists(st.integers(1, 4), max_size=2),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5)),
    distance=st.sampled_from(KINDS),
)
def test_linear_of_any_shape(seed, leading, sizes, distance):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))
        check(module, torch.randn(4, *leading, sizes[0]), distance)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99), dimensions=st.integers(1, 3), distance=st.sampled_from(KINDS))
def test_convolution_of_any_geometry(data, seed, dimensions, distance):
    each = st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions).map(tuple)
    kernel, stride, dilation = (data.draw(each) for _ in range(3))
    groups, outputs = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.integers(1, 3))
    inner = data.draw(st.sampled_from([1, 2, 9]))
    padding = tuple(data.draw(st.integers(0, k - 1)) for k in kernel)
    places = tuple(data.draw(st.integers(d * (k - 1) + 1, 9)) for k, d in zip(kernel, dilation, strict=True))
    make = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first = make(inner * groups, inner * groups, 1)
        second = make(inner * groups, outputs * groups, kernel, stride, padding, dilation, groups)
        check(nn.Sequential(first, nn.Tanh(), second), torch.randn(2, inner * groups, *places), distance)


def test_dropout_draws_the_same_masks_at_both_points():
    module = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 2))
    objective = Objective.of(module, losses)
    inputs, targets = torch.randn(5, 4), torch.randn(5)
    query = query_of(objective, "near", C1=1e9, C2=1e9, only_difference=True)
    for engine in (GhostEngine(objective), FunctionalEngine(objective)):
        assert float(engine(query, (inputs, targets)).secret.norm()) < 1e-2
