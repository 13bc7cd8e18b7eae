"""What comes into a module later is not published; what could teach it nothing is refused before a run begins."""

import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dpsrm
from dpsrm.core.errors import InputError
from dpsrm.training.callbacks import Evaluate

RECORDS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.ones(200)
SETTINGS = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=50, steps=2), seed=0
)


def losses(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).square()


def train(model, loss, out, **kwargs):
    return dpsrm.train(model, dpsrm.ModelLosses(loss), RECORDS, SETTINGS, out=out, **kwargs)


def test_a_buffer_that_came_later_is_not_published(tmp_path, caplog):
    """An observer that notes the range of what it sees in evaluation mode, as quantisation's do."""
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 1))

    def observe(module, inputs, _):
        if not module.training:
            module.register_buffer("high", inputs[0].amax(0))
            module.register_parameter("low", nn.Parameter(inputs[0].amin(0), requires_grad=False))

    model[0].register_forward_hook(observe)
    look = Evaluate(lambda module: {"mean": float(module(RECORDS[0]).mean())})
    with caplog.at_level(logging.WARNING):
        run = train(model, losses, tmp_path / "run", callbacks=[look])
    assert set(load_file(run.folder.model)) == {"1.weight", "1.bias"}
    assert "0.high, 0.low came into the module while training" in caplog.text
    assert dpsrm.verify(run.folder.path).ok
    assert torch.equal(model[0].high, RECORDS[0].amax(0)), "the user's own stays"


def test_tied_parameters_are_published_by_a_name_that_was_there(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[1].weight = model[0].weight
    found = load_file(train(model, losses, tmp_path / "run").folder.model)
    again = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    again[1].weight = again[0].weight
    assert set(found) < set(again.state_dict())
    again.load_state_dict(found, strict=False)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, batch: losses(model, batch).detach(),
        lambda model, batch: (model(batch[0]).squeeze(1) > 0).long(),
        lambda model, batch: torch.ones(len(batch[0])),
    ],
)
def test_losses_without_a_gradient_are_refused_before_anything_is_charged(tmp_path, loss):
    """They would spend the budget on noise alone."""
    with pytest.raises(InputError, match="must have a gradient"):
        train(nn.Linear(3, 1), loss, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_hooks_on_parameters_are_refused(tmp_path):
    """They would be passed by in silence."""
    model = nn.Linear(3, 1)
    model.weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(InputError, match=r"hooks on parameters .*'weight'"):
        train(model, losses, tmp_path / "run")
