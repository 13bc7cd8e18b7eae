"""Training looks at module and loss before anything is charged: memory outside of them, writes that are discarded."""

import logging

import pytest
import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import IsolationError


def settings():
    return dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5),
        training=dpsrm.Training(batch=10, steps=2),
        seed=1,
    )


def squared(outputs, targets):
    return (outputs.flatten(1) - targets[:, None]).square().mean(1)


def test_memory_outside_of_the_module_is_refused_before_a_folder_is_made(tmp_path):
    seen = []

    def remembers(outputs, targets):
        seen.append(outputs.detach().mean())
        return squared(outputs - seen[-2] if len(seen) > 1 else outputs, targets)

    with pytest.raises(IsolationError, match="remember"):
        dpsrm.train(nn.Linear(3, 2), remembers, (torch.randn(40, 3), torch.randn(40)), settings(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_writes_that_are_discarded_are_named_once(tmp_path, caplog):
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)))
    before = {name: value.clone() for name, value in module.named_buffers()}
    with caplog.at_level(logging.WARNING, logger="dpsrm.training.targets"):
        dpsrm.train(module, squared, (torch.randn(40, 3), torch.randn(40)), settings(), out=tmp_path / "run")
    (notice,) = [r.getMessage() for r in caplog.records if r.name == "dpsrm.training.targets"]
    assert "parametrizations.weight.0._u" in notice
    assert "is discarded" in notice
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())
