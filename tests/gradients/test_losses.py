"""Clipped losses: every record adds between 0 and its clip, whatever it is; in closed form for linear models too."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import LinearEngine, Objective, binary_loss, clipped_losses, multiclass_loss, squared_loss
from dpsrm.gradients.query import MARGIN


def signed(outputs, targets):
    """A loss that can be anything: the output times the target."""
    return outputs.squeeze(-1) * targets


def identity():
    """f_i(θ) = θ·x·y."""
    return Objective.of(nn.Linear(1, 1, bias=False, dtype=torch.float64), signed)


def scores(targets, clip=1.0, points=(-1.0, 0.0, 1.0)):
    inputs = torch.ones(len(targets), 1, dtype=torch.float64)
    where = [torch.tensor([point], dtype=torch.float64) for point in points]
    offsets = (0.0,) * len(points)
    return clipped_losses(
        identity(), where, (inputs, torch.tensor(targets, dtype=torch.float64)), clip=clip, offsets=offsets
    )


def test_a_negative_loss_counts_as_nothing():
    """Without the lower clamp one record would move the scores apart by any amount."""
    most = 1 - MARGIN
    assert scores([-100.0]).secret == (most, 0.0, 0.0)
    assert scores([0.25, -7.0]).secret == (most, 0.0, 0.25)


@pytest.mark.parametrize("replaced", [1e9, -1e9, math.inf, -math.inf, math.nan, 0.3])
def test_one_record_moves_the_scores_apart_by_no_more_than_the_spread(replaced):
    base, others = [0.5, -0.2, 2.0], [0.5, -0.2, replaced]
    for adjacency, there in ((Adjacency.REPLACE_ONE, scores(others)), (Adjacency.ADD_REMOVE, scores(base[:2]))):
        here = scores(base)
        moved = [a - b for a, b in zip(here.secret, there.secret, strict=True)]
        assert max(moved) - min(moved) <= here.spread(adjacency)


@pytest.mark.parametrize("loss", [binary_loss, multiclass_loss, squared_loss])
def test_the_closed_form_is_the_general_one(loss):
    generator = torch.Generator().manual_seed(0)
    outputs = 3 if loss is multiclass_loss else 1
    objective = Objective.of(nn.Linear(4, outputs, dtype=torch.float64), loss)
    inputs = torch.randn(3000, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(outputs if outputs > 1 else 2, (3000,), generator=generator)
    points = [torch.randn(objective.layout.size, generator=generator, dtype=torch.float64) for _ in range(3)]
    offsets = (0.0, 5.0, -1.0)
    for clip in (0.7, math.inf):
        slow = clipped_losses(objective, points, (inputs, targets), clip=clip, offsets=offsets)
        fast = LinearEngine(objective).over(inputs, targets).scores(points, np.arange(3000), clip=clip, offsets=offsets)
        assert fast.secret == pytest.approx(slow.secret, rel=2 * MARGIN)
        assert (fast.bound, fast.rows) == (slow.bound, slow.rows)


def test_losses_that_are_no_numbers_are_bounded_in_closed_form():
    objective = Objective.of(nn.Linear(1, 1, bias=False, dtype=torch.float64), squared_loss)
    inputs = torch.tensor([[1.0], [math.nan], [1e300], [math.inf]], dtype=torch.float64)
    sums = LinearEngine(objective).over(inputs, torch.zeros(4))
    (total,) = sums.scores([torch.ones(1).double()], np.arange(4), clip=2.0, offsets=(0.0,)).secret
    assert total == pytest.approx(0.5 + 3 * 2.0)


def test_scores_are_rounded_once():
    """A million losses: each of the two scores is the correctly rounded sum of what is added."""
    targets = torch.rand(10**6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()
    found = scores(targets, points=(0.5, 1.0))
    limit = 1 - MARGIN
    assert found.secret == tuple(math.fsum(min(point * t, limit) for t in targets) for point in (0.5, 1.0))


def test_scores_that_float64_cannot_tell_apart_are_refused():
    with pytest.raises(InputError, match="summed safely"):
        clipped_losses(
            identity(), [torch.ones(1).double()], (torch.ones(1, 1), torch.ones(1)), clip=1.0, offsets=[1e10]
        )
