"""Rounding included: no contribution above its clip, no two neighbouring sums further apart than the sensitivity.

Everything here is compared in exact arithmetic (fractions, or sums that `math.fsum` rounds once).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.gradients import LinearEngine, Objective, Part, Query, binary_loss, multiclass_loss, squared_loss
from dpsrm.gradients.linear import sum_error

MILLION = 10**6


def linear(features=1, *, outputs=1, bias=True, loss=binary_loss, dtype=torch.float64):
    """A linear model at θ = 0."""
    module = nn.Linear(features, outputs, bias=bias, dtype=dtype)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return Objective.of(module, loss)


def gradient_at(objective, clip, *, at=None):
    theta = objective.layout.read(objective.module) if at is None else at
    return Query(points=(theta,), parts=(Part(coefficients=(1.0,), clip=clip),))


def square(vector):
    """‖·‖² exactly."""
    return sum((Fraction(value) ** 2 for value in vector.tolist()), Fraction(0))


@pytest.mark.parametrize("place", [0, 1, 7, 499_999, 999_999])
def test_a_million_tiny_examples_and_their_neighbour(place):
    """All examples pull one way at their full clip, and one is turned round: the worst case of the sensitivity."""
    objective, clip = linear(), 0.1
    inputs = torch.full((MILLION, 1), 0.3, dtype=torch.float64)
    sums = LinearEngine(objective).over(inputs, torch.zeros(MILLION, dtype=torch.int64))
    turned = torch.zeros(MILLION, dtype=torch.int64)
    turned[place] = 1
    others = LinearEngine(objective).over(inputs, turned)
    everyone, without = np.arange(MILLION), np.delete(np.arange(MILLION), place)
    here, there = (s(gradient_at(objective, clip), everyone).secret for s in (sums, others))
    moved = [Fraction(a) - Fraction(b) for a, b in zip(here.tolist(), there.tolist(), strict=True)]
    assert sum(value**2 for value in moved) <= Fraction(2 * clip) ** 2
    removed = sums(gradient_at(objective, clip), without).secret
    moved = [Fraction(a) - Fraction(b) for a, b in zip(here.tolist(), removed.tolist(), strict=True)]
    assert Fraction(clip * 0.999) ** 2 < sum(value**2 for value in moved) <= Fraction(clip) ** 2


def test_the_error_of_a_sum_of_a_million_is_within_its_bound():
    """Exactly known contributions, unclipped; adding 0.1 a million times in one chain errs sixty times too much."""
    objective = linear(bias=False, loss=squared_loss)
    targets = torch.full((MILLION,), -0.1, dtype=torch.float64)
    targets[::3] = -1 / 3
    total = LinearEngine(objective)(gradient_at(objective, math.inf), (torch.ones(MILLION, 1).double(), targets))
    exact = math.fsum((-targets).tolist())
    error = abs(float(total.secret[0]) - exact)
    assert error <= 2003 * 2.0**-53 * exact
    assert error <= sum_error(MILLION) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [binary_loss, multiclass_loss, squared_loss])
def test_no_contribution_is_longer_than_its_clip_not_even_by_rounding(loss, dtype):
    generator = torch.Generator().manual_seed(4)
    outputs = 3 if loss is multiclass_loss else 1
    for features in (1, 2, 30, 300):
        objective = linear(features, outputs=outputs, loss=loss, dtype=dtype)
        at = torch.randn(objective.layout.size, generator=generator, dtype=dtype)
        inputs = torch.randn(60, features, generator=generator, dtype=dtype)
        targets = torch.randint(outputs if outputs > 1 else 2, (60,), generator=generator)
        sums = LinearEngine(objective).over(inputs, targets if loss is not squared_loss else targets.to(dtype))
        for row in range(60):
            clip = float(torch.rand(1, generator=generator)) + 1e-3
            assert square(sums(gradient_at(objective, clip, at=at), np.array([row])).secret) <= Fraction(clip) ** 2


def test_a_part_that_just_fits_its_clip_is_shrunk_too():
    """A norm that is computed a little too short must not pass unclipped."""
    objective = linear(bias=False, loss=squared_loss)
    sums = LinearEngine(objective).over(torch.tensor([[0.1]]).double(), torch.tensor([3.0]).double())
    norm = float(sums(gradient_at(objective, 1e9), np.array([0])).secret.abs())
    assert 0.999 * norm < float(sums(gradient_at(objective, norm), np.array([0])).secret.abs()) < norm


@pytest.mark.parametrize(
    ("x", "target", "dtype"),
    [
        (1e-25, 1e30, torch.float32),
        (1e-170, 1e180, torch.float64),
        (1e-300, 1e303, torch.float64),
        (5e-324, 1e308, torch.float64),
        (1e200, 1e100, torch.float64),
        (1e300, 1e-100, torch.float64),
        (3e-310, 1e306, torch.float64),
    ],
)
def test_squares_that_underflow_or_overflow_hide_no_gradient(x, target, dtype):
    objective = linear(2, bias=False, loss=squared_loss, dtype=dtype)
    sums = LinearEngine(objective).over(torch.tensor([[x, -x]], dtype=dtype), torch.tensor([target], dtype=dtype))
    for clip in (1e-3, 1e-100, 1e-19):
        secret = sums(gradient_at(objective, clip), np.array([0])).secret
        assert square(secret) <= Fraction(clip) ** 2
        if x > 1e-300 and x * target < 1e150:
            assert square(secret) >= Fraction(clip * 0.999) ** 2


def test_many_outputs_whose_squares_underflow():
    objective = linear(2, outputs=3, bias=False, loss=multiclass_loss)
    sums = LinearEngine(objective).over(torch.tensor([[1e180, 0.0]], dtype=torch.float64), torch.tensor([0]))
    theta = objective.layout.read(objective.module)
    query = Query(points=(theta,), parts=(Part(coefficients=(1e-170,), clip=1e-3),))
    assert Fraction(0.999e-3) ** 2 <= square(sums(query, np.array([0])).secret) <= Fraction(1e-3) ** 2


def test_a_clip_too_small_to_square_is_refused():
    """The weighted one may be smaller still, and lets nothing through then."""
    objective = linear()
    with pytest.raises(InputError, match="underflow"):
        gradient_at(objective, 1e-101)
    parts = (Part(coefficients=(1.0,), clip=1e-90, weight=1e-150),)
    query = Query(points=(objective.theta(),), parts=parts)
    assert not LinearEngine(objective)(query, (torch.ones(3, 1).double(), torch.zeros(3))).secret.any()


def test_the_margin_is_of_the_public_size_not_of_the_batch_drawn():
    """Under Poisson sampling the batch's size is secret: no other record's contribution may depend on it."""
    objective = linear()
    inputs, targets = torch.full((5000, 1), 3.0, dtype=torch.float64), torch.zeros(5000)
    query = gradient_at(objective, 0.1)
    sums = LinearEngine(objective).over(inputs, targets)
    alone = sums(query, np.array([17])).secret
    assert torch.equal(LinearEngine(objective, population=5000)(query, (inputs[:1], targets[:1])).secret, alone)
    assert not torch.equal(LinearEngine(objective)(query, (inputs[:1], targets[:1])).secret, alone)
    with pytest.raises(InputError, match="margin"):
        LinearEngine(objective, population=3)(query, (inputs[:4], targets[:4]))


def test_indices_outside_the_records_are_refused():
    objective = linear()
    sums = LinearEngine(objective).over(torch.ones(3, 1).double(), torch.zeros(3))
    for wrong in (-1, 3):
        with pytest.raises(InputError, match="indices"):
            sums(gradient_at(objective, 1.0), np.array([0, wrong]))
        with pytest.raises(InputError, match="indices"):
            sums.scores([torch.zeros(2)], np.array([0, wrong]), clip=1.0, offsets=(0.0,))


def test_sums_that_would_overflow_are_refused():
    objective = linear()
    with pytest.raises(InputError, match="float64"):
        LinearEngine(objective)(gradient_at(objective, 1e300), (torch.ones(3, 1).double(), torch.zeros(3)))
