"""Every engine gives the loop oracle's sums; no record, however extreme, moves a sum by more than its sensitivity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import make_problem
from dpsrm.core.errors import BoundExceeded, InputError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import ENGINES, Excess, FunctionalEngine, LoopEngine, Objective, Part, Query, binary_loss, engine
from dpsrm.gradients.query import MARGIN

KINDS = ("logistic", "mlp", "cnn")
PAIRS = [(kind, name) for kind in KINDS for name in sorted(ENGINES) if name != "linear" or kind == "logistic"]
FAST = [(kind, name) for kind, name in PAIRS if name != "loop"]


def two_point_query(objective, *, distance=0.1, C1=0.8, C2=0.05, gamma=0.3, excess=Excess.CLIP):
    """DP-SRM's query at the module's parameters and at a point nearby."""
    here = objective.layout.read(objective.module)
    there = here + distance * torch.randn(len(here), generator=torch.Generator().manual_seed(3), dtype=here.dtype)
    parts = (
        Part(coefficients=(1.0, -1.0), clip=C2, weight=1 - gamma, name="gradient difference"),
        Part(coefficients=(1.0, 0.0), clip=C1, weight=gamma),
    )
    return Query(points=(here, there), parts=parts, excess=excess)


@pytest.mark.parametrize(("kind", "name"), FAST)
@pytest.mark.parametrize("b", [0, 1, 7])
@pytest.mark.parametrize("distance", [1e-4, 0.1, 10.0])
def test_equal_to_the_loop_oracle(kind, name, b, distance):
    objective, records = make_problem(kind)
    query = two_point_query(objective, distance=distance)
    fast, slow = (engine(each, objective)(query, records(b)) for each in (name, "loop"))
    assert torch.allclose(fast.secret, slow.secret, rtol=1e-4, atol=1e-5 * query.bound)
    assert fast.bound == slow.bound == pytest.approx(0.7 * 0.05 + 0.3 * 0.8)
    assert fast.rows == slow.rows == b
    if b:
        assert fast.diagnostics.clipped == slow.diagnostics.clipped
        assert fast.diagnostics.loss == pytest.approx(slow.diagnostics.loss, rel=1e-5)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    scale=st.sampled_from([1e-6, 1.0, 1e6, 1e30, math.inf, math.nan]),
    who=st.integers(0, 3),
    C1=st.floats(1e-3, 1e3),
    C2=st.floats(1e-3, 1e3),
    gamma=st.floats(0.01, 1.0),
)
def test_replacing_any_record_moves_the_sum_by_at_most_its_sensitivity(kind, name, seed, scale, who, C1, C2, gamma):
    objective, records = make_problem(kind)
    query = two_point_query(objective, C1=C1, C2=C2, gamma=gamma)
    inputs, targets = records(4)
    other_inputs, other_targets = records(1, seed=seed, scale=scale)
    neighbour = inputs.clone(), targets.clone()
    neighbour[0][who], neighbour[1][who] = other_inputs[0], other_targets[0]
    run = engine(name, objective)
    before, after = run(query, (inputs, targets)), run(query, neighbour)
    assert torch.isfinite(after.secret).all()
    moved = float((after.secret - before.secret).norm())
    assert moved <= before.sensitivity(Adjacency.REPLACE_ONE) * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_one_record_alone_is_within_the_bound_and_reaches_it(kind, name):
    objective, records = make_problem(kind)
    query = two_point_query(objective, C1=1e-3, C2=1e-3)
    total = engine(name, objective)(query, records(1, scale=50.0))
    part = Query(points=query.points[:1], parts=(Part(coefficients=(1.0,), clip=1e-3),))
    alone = engine(name, objective)(part, records(1, scale=50.0))
    assert float(total.secret.norm()) <= total.bound
    assert 0.999999e-3 < float(alone.secret.norm()) <= 1e-3


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_rows_that_are_not_numbers_count_as_zero(name):
    objective, records = make_problem("logistic")
    query = two_point_query(objective)
    inputs, targets = records(5)
    broken = inputs.clone()
    broken[2] = math.nan
    run = engine(name, objective)
    keep = [0, 1, 3, 4]
    total = run(query, (broken, targets))
    assert total.diagnostics.nonfinite == 1
    assert torch.allclose(total.secret, run(query, (inputs[keep], targets[keep])).secret, rtol=1e-6)


class Folded(nn.Module):
    """Its gradient changes its sign with the parameter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return (self.w.abs() * x).sum(-1)


@pytest.mark.parametrize("name", sorted({*ENGINES} - {"linear"}))
def test_a_difference_that_float64_cannot_hold_counts_as_zero(name):
    objective = Objective.of(Folded(), lambda outputs, targets: outputs * targets)
    here, inputs = objective.theta(), torch.ones(4, 3, dtype=torch.float64)
    parts = Part(coefficients=(1.0, -1.0), clip=0.5, weight=0.7), Part(coefficients=(1.0, 0.0), clip=1.0, weight=0.3)
    query, run = Query(points=(here, -here), parts=parts), engine(name, objective)
    inputs[1] = 1.7e308
    total = run(query, (inputs, torch.ones(4, dtype=torch.float64)))
    rest = run(query, (inputs[[0, 2, 3]], torch.ones(3, dtype=torch.float64)))
    assert float((total.secret - rest.secret).norm()) <= query.bound


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_theory_mode_stops_at_a_record_that_breaks_the_assumption(name):
    objective, records = make_problem("logistic")
    run = engine(name, objective)
    for C1, C2, word in ((1e-3, 1e3, "gradient exceeds"), (1e3, 1e-6, "gradient difference exceeds")):
        with pytest.raises(BoundExceeded, match=word):
            run(two_point_query(objective, C1=C1, C2=C2, excess=Excess.RAISE), records(4))
    fine = two_point_query(objective, C1=1e3, C2=1e3, excess=Excess.RAISE)
    assert run(fine, records(4)).rows == 4
    inputs, targets = records(4)
    inputs[0] = math.nan
    with pytest.raises(BoundExceeded):
        run(fine, (inputs, targets))


@pytest.mark.parametrize("kind", ["logistic", "mlp", "cnn"])
def test_pieces_of_a_batch_give_the_same_sum(kind):
    objective, records = make_problem(kind, dtype=torch.float64)
    query = two_point_query(objective)
    whole = FunctionalEngine(objective)(query, records(7))
    pieces = FunctionalEngine(objective, max_physical_batch=2)(query, records(7))
    assert torch.allclose(whole.secret, pieces.secret, rtol=1e-6, atol=1e-9)
    assert pieces.rows == 7


def test_dropout_uses_one_mask_at_both_points():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 1))
    objective = Objective.of(module, binary_loss)
    here = objective.layout.read(module)
    query = Query(points=(here, here), parts=(Part(coefficients=(1.0, -1.0), clip=1.0),))
    total = FunctionalEngine(objective)(query, (torch.randn(8, 6), torch.zeros(8)))
    assert float(total.secret.norm()) == 0.0


def test_layers_that_mix_examples_are_refused():
    with pytest.raises(InputError, match="GroupNorm"):
        Objective.of(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), binary_loss)


def test_a_loss_that_is_already_a_mean_is_refused():
    objective = Objective.of(nn.Linear(3, 1), lambda outputs, targets: outputs.mean())
    with pytest.raises(InputError, match="reduction"):
        objective.losses(objective.layout.read(objective.module), (torch.zeros(2, 3), torch.zeros(2)))


def test_frozen_parameters_are_left_alone():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    module[0].requires_grad_(False)
    objective = Objective.of(module, binary_loss)
    assert objective.layout.size == 5
    with pytest.raises(InputError, match="trainable"):
        Objective.of(module[0], binary_loss)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_the_module_is_left_as_it_was(kind, name):
    objective, records = make_problem(kind)
    before = {key: value.clone() for key, value in objective.module.state_dict().items()}
    engine(name, objective)(two_point_query(objective), records(3))
    after = objective.module.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(p.grad is None for p in objective.module.parameters())


def test_the_loop_oracle_agrees_with_autograd_by_hand():
    """Logistic regression in closed form: ∇f_i = (σ(θ·x) − y)·(x, 1)."""
    objective, records = make_problem("logistic", dtype=torch.float64)
    inputs, targets = records(6)
    theta = objective.layout.read(objective.module)
    residual = torch.sigmoid(inputs @ theta[:5] + theta[5]) - targets
    rows = residual[:, None] * torch.cat([inputs, torch.ones(6, 1, dtype=torch.float64)], dim=1)
    rows = rows * torch.clamp(0.7 * (1 - MARGIN) / rows.norm(dim=1, keepdim=True), max=1)
    query = Query(points=(theta,), parts=(Part(coefficients=(1.0,), clip=0.7),))
    assert torch.allclose(LoopEngine(objective)(query, (inputs, targets)).secret, rows.sum(dim=0), rtol=1e-9)


@pytest.mark.parametrize("bad", [{"clip": 0.0}, {"clip": -1.0}, {"clip": 1.0, "weight": -0.1}, {"clip": math.nan}])
def test_parts_that_bound_nothing_are_refused(bad):
    with pytest.raises(InputError):
        Part(coefficients=(1.0,), **bad)


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (nn.Linear(4, 1, dtype=torch.complex64), "must be real"),
        (nn.LazyLinear(1), "must have their shapes"),
    ],
)
def test_parameters_without_numbers_of_their_own_are_refused(module, rule):
    """The loop engine left out the imaginary part of a gradient."""
    with pytest.raises(InputError, match=rule):
        Objective.of(module, lambda outputs, targets: outputs.abs().sum(1))
