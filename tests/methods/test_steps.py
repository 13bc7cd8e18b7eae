"""Step rules: constant, torch optimizers fed with the direction, and a regulariser outside clip and noise."""

import pytest
import torch
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.gradients import Layout
from dpsrm.methods import ConstantStep, NonconvexPenalty, OptimizerStep, PenalisedStep, Regularised, penalised

MODULE = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
LAYOUT = Layout.of(MODULE)


@pytest.mark.parametrize(
    "factory",
    [
        lambda leaves: torch.optim.SGD(leaves, lr=0.1, momentum=0.9),
        lambda leaves: torch.optim.Adam(leaves, lr=0.1),
        lambda leaves: torch.optim.RMSprop(leaves, lr=0.1),
        lambda leaves: torch.optim.Adafactor(leaves, lr=0.1),
    ],
    ids=["sgd", "adam", "rmsprop", "adafactor"],
)
def test_any_optimizer_moves_as_if_the_direction_were_the_gradient(factory):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(LAYOUT.size, generator=generator)
    directions = [torch.randn(LAYOUT.size, generator=generator, dtype=torch.float64) for _ in range(5)]
    leaves = [nn.Parameter(piece.clone()) for piece in LAYOUT.split(theta).values()]
    reference = factory(leaves)
    step = OptimizerStep.made(factory, LAYOUT, theta)
    for direction in directions:
        for leaf, slope in zip(leaves, LAYOUT.split(direction).values(), strict=True):
            leaf.grad = slope.float().clone()
        reference.step()
        theta = step.advance(theta, direction)
    assert torch.equal(theta, torch.cat([leaf.detach().reshape(-1) for leaf in leaves]))


def test_an_optimizers_state_can_be_carried_on():
    def make():
        return OptimizerStep.made(lambda leaves: torch.optim.Adam(leaves, lr=0.1), LAYOUT, torch.zeros(LAYOUT.size))

    ones = torch.ones(LAYOUT.size)
    straight, first, second = make(), make(), make()
    theta = straight.advance(straight.advance(torch.zeros(LAYOUT.size), ones), -2 * ones)
    half = first.advance(torch.zeros(LAYOUT.size), ones)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.advance(half, -2 * ones), theta)


def test_the_regularisers_gradient_is_added_to_the_direction():
    theta = torch.tensor([1.0, -2.0], dtype=torch.float64)
    slope = 2 * 0.1 * theta / (1 + theta**2) ** 2
    moved = Regularised(ConstantStep(0.5), NonconvexPenalty(0.1)).advance(theta, torch.ones(2, dtype=torch.float64))
    assert torch.allclose(moved, theta - 0.5 * (1 + slope))


def test_rates_that_do_not_move_are_refused():
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError):
            ConstantStep(rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 124, 5000])
def test_a_penalised_step_is_the_regularised_constant_step(dtype, size):
    """NumPy's pass and torch's are the same to the last bit, and leave their arguments alone."""
    draw = torch.Generator().manual_seed(size)
    penalty = NonconvexPenalty(0.03)
    fused, plain = PenalisedStep(0.7, penalty), Regularised(ConstantStep(0.7), penalty, gradient=penalty.gradient)
    for scale in (1e-3, 1.0, 1e3):
        theta = (scale * torch.randn(size, generator=draw)).to(dtype)
        direction = torch.randn(size, generator=draw, dtype=torch.float64)
        before = theta.clone(), direction.clone()
        moved = fused.advance(theta, direction)
        assert moved.dtype == dtype
        assert torch.equal(moved, plain.advance(theta, direction))
        assert torch.equal(theta, before[0])
        assert torch.equal(direction, before[1])
        assert fused.penalty(theta) == plain.penalty(theta)


def test_a_penalised_step_that_overflows_warns_no_more_than_torch():
    """What is not finite is the loop's to refuse."""
    theta, direction = torch.full((3,), 1e30), torch.full((3,), 1e300, dtype=torch.float64)
    assert not PenalisedStep(1.0, NonconvexPenalty(0.1)).advance(theta, direction).isfinite().any()


def test_what_is_no_constant_step_on_the_processor_is_left_to_torch():
    penalty, small = NonconvexPenalty(0.1), torch.zeros(3)
    assert isinstance(penalised(ConstantStep(1.0), penalty, like_P=small), PenalisedStep)
    for stepper, like in [
        (Regularised(ConstantStep(1.0), penalty), small),
        (ConstantStep(1.0), torch.zeros(3, dtype=torch.bfloat16)),
        (ConstantStep(1.0), torch.zeros(3, device="meta")),
        (ConstantStep(1.0), torch.zeros(2**16 + 1)),
    ]:
        assert isinstance(penalised(stepper, penalty, like_P=like), Regularised)
