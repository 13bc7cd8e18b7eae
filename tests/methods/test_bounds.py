"""The bound of every release is the one the method's settings state: no method asks with a wider clip."""

import pytest
import torch

from dpsrm.core.errors import DpsrmError
from dpsrm.gradients import ClipRule, Part
from dpsrm.gradients.query import part_factors
from dpsrm.mechanisms import Selection
from dpsrm.methods import METHODS, Agd, ConstantStep, Disk, Gd, Rrpsgd, Schedule, Sgd, Spider, Srm
from dpsrm.methods.method import Choice, Stage

SCHEDULE = Schedule(steps=6, batch=4, first_batch=9)
C1, C2 = 0.7, 0.2

CASES = [
    (Srm(max_grad_norm=C1, max_diff_norm=C2, gamma=0.3), [C1] + [0.7 * C2 + 0.3 * C1] * 5),
    (Srm(max_grad_norm=C1, max_diff_norm=C2, gamma=1.0), [C1] * 6),
    (Srm(max_grad_norm=C1, joint_norm=0.9, gamma=0.3), [C1] + [0.9] * 5),
    (Sgd(max_grad_norm=C1), [C1] * 6),
    (Sgd(max_grad_norm=C1, momentum=0.9), [C1] * 6),
    (Gd(max_grad_norm=C1), [C1] * 6),
    (Rrpsgd(max_grad_norm=C1), [C1] * 6),
    (Disk(max_grad_norm=C1), [C1] * 6),
    (Spider(max_grad_norm=C1, max_diff_norm=C2, smoothness=1e9, period=3), [C1, C2, C2, C1, C2, C2]),
]


@pytest.mark.parametrize(("method", "bounds"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_the_bound_of_every_release_is_the_settings(method, bounds):
    walk = method.begin(torch.zeros(3), schedule=SCHEDULE, stepper=ConstantStep(1.0))
    found = []
    for step in range(6):
        found.append(walk.ask().query.bound)
        walk.tell(torch.full((3,), 1.0 + step, dtype=torch.float64))
    assert found == pytest.approx(bounds, rel=1e-12)


def test_every_private_method_is_in_the_table():
    covered = {method.name for method, _ in CASES} | {"agd"}
    assert {name for name, method in METHODS.items() if method.private} - covered <= {"adam"}


def test_the_choice_of_dp_agd_has_its_bound_and_price():
    method = Agd(max_grad_norm=C1, max_loss=2.5, rho=0.01, growth=0.5, selection="exponential")
    schedule = Schedule(steps=6, batch=9, first_batch=9)
    walk = method.begin(torch.zeros(3), schedule=schedule, stepper=ConstantStep(1.0))
    ask = walk.ask()
    assert (ask.query.bound, ask.rho, ask.batch) == (C1, 0.01, 9)
    walk.tell(torch.ones(3, dtype=torch.float64))
    choice = walk.ask()
    assert isinstance(choice, Choice)
    assert (choice.clip, choice.rho, choice.batch, choice.selection) == (2.5, 0.01, 9, Selection.EXPONENTIAL)
    walk.tell(torch.tensor(0))
    more = walk.ask()
    assert (more.query.bound, more.rho) == (C1, pytest.approx(0.005))


def test_a_method_without_a_clip_is_not_private():
    with pytest.raises(DpsrmError):
        Sgd(max_grad_norm=0.0)


@pytest.mark.parametrize("rule", list(ClipRule))
def test_no_part_is_longer_than_its_clip(rule):
    """Norms from far below the clip to far above it, at it, and one rounding beside it."""
    clip = 0.7
    norms = torch.tensor([0.0, 1e-300, 0.1, 0.7, 0.7000000000000002, 0.71, 1.3, 1.4, 5.0, 1e300], dtype=torch.float64)
    factors = part_factors(norms, Part(coefficients=(1.0,), clip=clip, rule=rule))
    assert ((norms * factors) <= clip).all()
    assert (factors >= 0).all()


def test_dp_agds_plan_has_a_gradient_and_a_choice_for_every_update():
    schedule = Schedule(steps=6, batch=9, first_batch=9)
    assert Agd().stages(schedule) == (Stage(9, 12, zcdp=True),)
    assert Agd().calibrated(2.0).rho == 1 / 8
