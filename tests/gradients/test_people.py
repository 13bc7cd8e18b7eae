"""Examples of several rows: every engine gives the sum over persons of their clipped sums over rows, and no more."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from dpsrm.core.tree import Bundles
from dpsrm.data import csr_tensor
from dpsrm.gradients import (
    ClipRule,
    GhostEngine,
    LinearEngine,
    LoopEngine,
    Objective,
    Part,
    Query,
    Way,
    binary_loss,
    clipped_losses,
    engine,
    multiclass_loss,
    squared_loss,
)
from gradients.ghost_cases import CASES, problem, query_of, relative_error

K = 3
LOSSES = {"binary": (binary_loss, 1), "squared": (squared_loss, 1), "multiclass": (multiclass_loss, 4)}
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
ENGINES = ["linear", "ghost", "functional", "loop"]


def bundles(rows, counts):
    """Persons of up to K rows, from (B·K, …) tensors: places beyond a person's rows hold copies of the first."""
    counts_Bk = torch.arange(K) < torch.tensor(counts)[:, None]
    first = (torch.arange(len(counts)) * K)[:, None].expand(-1, K)
    at = torch.where(counts_Bk, first + torch.arange(K), first).flatten()
    return Bundles(
        tuple(torch.unflatten(t[at], 0, (len(counts), K)) for t in rows), counts_Bk.to(torch.get_default_dtype())
    )


def by_hand(exact, query, rows, counts):
    """Σ over persons of clip(Σ over rows of the row's gradient), in float64, without any of the code above."""
    total = torch.zeros(exact.layout.size, dtype=torch.float64)
    for person, count in enumerate(counts):
        gradients = []
        for point_P in query.points:
            leaf = point_P.double().requires_grad_()
            some = slice(person * K, person * K + count)
            batch = tuple(t[some].double() if t.is_floating_point() else t[some] for t in rows)
            loss = sum(exact.alone(leaf, tuple(t[r] for t in batch)) for r in range(count))
            gradients.append(torch.autograd.grad(loss, leaf)[0])
        for part in query.parts:
            mixed = sum(c * g for c, g in zip(part.coefficients, gradients, strict=True))
            total += part.weight * mixed * min(1.0, part.clip / float(mixed.norm()))
    return total


ALONE = ("bias-per-position", "bias-used-elsewhere")
"""Modules that torch itself runs on one row at a time only."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in ALONE])
def test_ghost_norms_across_the_rows_of_a_person(name):
    """Every rule of the ghost engine, a person's rows in places of their own."""
    counts = [3, 1, 2]
    objective, exact, inputs, targets = problem(name, K * len(counts))
    query = query_of(objective, "far")
    found = GhostEngine(objective, notice=lambda _: None)(query, bundles((inputs, targets), counts))
    assert relative_error(found.secret, by_hand(exact, query, (inputs, targets), counts)) <= 1e-5
    assert (found.rows, found.bound) == (len(counts), query.bound)


def linear_problem(kind, *, people, seed=0, bias=True):
    """A linear model, its objective in float64, and K rows for each person."""
    loss, outputs = LOSSES[kind]
    generator = torch.Generator().manual_seed(seed)
    module = nn.Linear(6, outputs, bias=bias).double()
    inputs = torch.randn(people * K, 6, generator=generator).double()
    targets = torch.randint(2 if outputs == 1 else outputs, (people * K,), generator=generator)
    return module, loss, (inputs, targets)


def asked(size, kind, *, clip=0.7, rule="flat", seed=3):
    """DP-SGD's question, or DP-SRM's two parts at two points."""
    rule = ClipRule(rule)
    generator = torch.Generator().manual_seed(seed)
    points = tuple(torch.randn(size, generator=generator).double() for _ in range(2))
    if kind == "one":
        return Query(points=points[:1], parts=(Part(coefficients=(1.0,), clip=clip, rule=rule),))
    difference = Part(coefficients=(1.0, -1.0), clip=clip / 2, weight=0.9, name="difference", rule=rule)
    return Query(points=points, parts=(difference, Part(coefficients=(1.0, 0.0), clip=clip, weight=0.1, rule=rule)))


def summed(name, module, loss, query, batch, *, steady=True):
    """The clipped sum by one engine."""
    objective = Objective.of(module, loss, way=Way.LOOP if name == "loop" else Way.VMAP)
    return engine(name, objective, steady=steady)(query, batch)


@pytest.mark.parametrize("rule", ["flat", "auto"])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("bias", [True, False])
def test_the_closed_form_equals_the_loop(kind, bias, rule):
    counts = [3, 1, 2, 2, 1, 3, 3]
    module, loss, rows = linear_problem(kind, people=len(counts), bias=bias)
    for query in (asked(sum(p.numel() for p in module.parameters()), each, rule=rule) for each in ("one", "two")):
        fast, slow = (summed(name, module, loss, query, bundles(rows, counts)) for name in ("linear", "loop"))
        assert relative_error(fast.secret, slow.secret) <= 2e-6
        assert fast.rows == slow.rows == len(counts)
        assert fast.diagnostics.clipped == slow.diagnostics.clipped
        assert fast.diagnostics.loss == pytest.approx(slow.diagnostics.loss)


@pytest.mark.parametrize("kind", LOSSES)
def test_sparse_rows_give_what_dense_rows_give(kind):
    """A person's rows share some columns and not others; 1500 persons are more than one block."""
    rng, people = np.random.default_rng(0), 1500
    loss, outputs = LOSSES[kind]
    matrix = scipy.sparse.random_array((people * K, 40), density=0.1, rng=rng, format="csr")
    targets = torch.from_numpy(rng.integers(0, 2 if outputs == 1 else outputs, people * K))
    objective = Objective.of(nn.Linear(40, outputs).double(), loss)
    counts = rng.integers(1, K + 1, people)
    rows = np.concatenate([person * K + np.arange(count) for person, count in enumerate(counts)])
    picked, query = (rows, np.concatenate([[0], np.cumsum(counts)])), asked(objective.layout.size, "two")
    dense = LinearEngine(objective).over(torch.from_numpy(matrix.toarray()), targets, people=True)
    sparse = LinearEngine(objective).over(csr_tensor(matrix), targets, people=True)
    assert relative_error(sparse(query, picked).secret, dense(query, picked).secret) <= 1e-13
    asked_scores = {"clip": 0.9, "offsets": (0.0, 1.0)}
    scores = [sums.scores(query.points, picked, **asked_scores).secret for sums in (dense, sparse)]
    assert scores[0] == pytest.approx(scores[1])
    with pytest.raises(ValueError, match="indices must be those of records"):
        dense(query, (rows + K, picked[1]))


HARMLESS, LONG, NAN, INFINITE, TINY = 1.0, 1e6, float("nan"), float("inf"), 1e-30


def neighbours():
    """name → (rows of person 1 and how many of them, in the first dataset and in the second)."""
    return {
        "more rows": ((HARMLESS, 1), (-HARMLESS, 3)),
        "fewer and longer": ((HARMLESS, 3), (LONG, 1)),
        "opposite, all long": ((LONG, 3), (-LONG, 3)),
        "not a number": ((LONG, 3), (NAN, 2)),
        "infinite": ((INFINITE, 1), (-LONG, 3)),
        "tiny": ((-LONG, 3), (TINY, 1)),
    }


@pytest.mark.parametrize("change", neighbours().values(), ids=neighbours())
@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("name", ENGINES)
def test_replacing_all_rows_of_a_person_moves_the_sum_by_at_most_the_sensitivity(name, steady, change):
    """Same randomness, every kind of question; what the others contribute must stay the same to the bit."""
    losses = LOSSES if name == "linear" else ["multiclass"]
    for kind, rule, which in itertools.product(["one", "two"], ["flat", "auto"], losses):
        module, loss, rows = linear_problem(which, people=4)
        query, sums = asked(sum(p.numel() for p in module.parameters()), kind, rule=rule), []
        for scale, count in change:
            inputs = rows[0].clone()
            inputs[K : 2 * K] = scale * inputs[K : 2 * K].abs()
            sums.append(summed(name, module, loss, query, bundles((inputs, rows[1]), [2, count, 3, 1]), steady=steady))
        assert float((sums[0].secret - sums[1].secret).norm()) <= 2 * query.bound
        without = summed(name, module, loss, query, bundles(rows, [2, 0, 3, 1]), steady=steady)
        for each in sums:
            assert float((each.secret - without.secret).norm()) <= query.bound * (1 + 1e-12)


@pytest.mark.parametrize("name", ENGINES)
def test_clipping_row_by_row_would_be_noticed(name):
    """Three equal rows of norm above the clip: together they are one clip, not three."""
    module, loss, (inputs, targets) = linear_problem("squared", people=1)
    query = asked(7, "one", clip=0.1)
    batch = bundles((inputs[:1].expand(K, -1), 5 + targets[:1].expand(K)), [K])
    found = summed(name, module, loss, query, batch)
    assert float(found.secret.norm()) == pytest.approx(0.1, rel=1e-5)
    assert found.diagnostics.clipped == (1.0,)


def test_the_rows_of_a_person_can_be_run_in_one_batch_with_others():
    """isolation = "checked": (persons × rows) in one call, norms by person."""
    counts = [3, 1, 2]
    for name in ("conv2d", "encoder", "linear-leading"):
        objective, exact, inputs, targets = problem(name, K * len(counts))
        whole = Objective.of(objective.module, objective.loss, way=Way.BATCH)
        query = query_of(objective, "far")
        found = GhostEngine(whole, notice=lambda _: None)(query, bundles((inputs, targets), counts))
        assert relative_error(found.secret, by_hand(exact, query, (inputs, targets), counts)) <= 1e-5


@pytest.mark.parametrize("kind", LOSSES)
def test_the_losses_of_a_person_are_added_up_before_they_are_clamped(kind):
    counts = [3, 1, 2, 0, 3]
    module, loss, (inputs, targets) = linear_problem(kind, people=len(counts))
    objective = Objective.of(module, loss)
    inputs[4 * K] = float("nan")
    points, rest = asked(objective.layout.size, "two").points, {"clip": 1.3, "offsets": (0.0, 0.5)}
    by_module = clipped_losses(objective, points, bundles((inputs, targets), counts), **rest)
    rows = np.concatenate([person * K + np.arange(count) for person, count in enumerate(counts)])
    sums = LinearEngine(objective).over(inputs, targets, people=True)
    closed = sums.scores(points, (rows, np.cumsum([0, *counts])), **rest)
    assert closed.secret == pytest.approx(by_module.secret, rel=1e-5)
    assert closed.rows == by_module.rows == len(counts)
    per_row = [objective.losses(point_P, (inputs, targets)) for point_P in points]
    for sum_, losses_R, offset in zip(by_module.secret, per_row, rest["offsets"], strict=True):
        people = [float(losses_R[p * K : p * K + c].sum()) for p, c in enumerate(counts[:4])]
        assert sum_ == pytest.approx(offset + sum(min(x, 1.3) for x in people) + 1.3, rel=1e-5), (
            "NaN counts as the clip"
        )


def test_batches_without_a_person():
    for name in ENGINES:
        module, loss, rows = linear_problem("binary", people=2)
        nobody = bundles(rows, [1, 1])
        nobody = Bundles(tuple(t[:0] for t in nobody.rows), nobody.counts[:0])
        assert float(summed(name, module, loss, asked(7, "two"), nobody).secret.abs().sum()) == 0


def test_a_persons_contribution_is_within_its_clip_in_exact_arithmetic():
    """Fractions: the float64 numbers of one person's contribution, whose norm was computed with rounding."""
    from fractions import Fraction

    rng = np.random.default_rng(1)
    for trial in range(60):
        outputs = (1, 3)[trial % 2]
        loss = (squared_loss, multiclass_loss)[trial % 2]
        D, rows, clip = int(rng.integers(1, 60)), int(rng.integers(2, 9)), float(rng.uniform(0.01, 3))
        objective = Objective.of(nn.Linear(D, outputs).double(), loss)
        inputs = torch.from_numpy(rng.normal(size=(rows, D)) * 10.0 ** rng.integers(-3, 4))
        targets = torch.from_numpy(rng.integers(0, outputs, rows) if outputs > 1 else rng.normal(size=rows) * 100)
        query = asked(objective.layout.size, ("one", "two")[trial % 2], clip=clip, seed=trial)
        engine_ = LinearEngine(objective, population=2**20)
        found = engine_.over(inputs, targets, people=True)(query, (np.arange(rows), np.array([0, rows])))
        square = sum(Fraction(float(x)) ** 2 for x in found.secret)
        assert square <= Fraction(query.bound) ** 2
        assert float(found.secret.norm()) >= 0.2 * query.bound, "nothing was clipped: the test would show nothing"


def test_the_loop_oracle_agrees_with_the_sum_by_hand():
    counts = [3, 1, 2]
    objective, exact, inputs, targets = problem("linear-leading", K * len(counts))
    query = query_of(objective, "near")
    found = LoopEngine(objective)(query, bundles((inputs, targets), counts))
    assert relative_error(found.secret, by_hand(exact, query, (inputs, targets), counts)) <= 1e-4
