"""Training looks at module and loss before anything is charged: memory outside of them, writes that are discarded."""

import logging
import subprocess
import sys

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
    torch.manual_seed(0)
    module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(30, 20)))
    before = {name: value.clone() for name, value in module.named_buffers()}
    with caplog.at_level(logging.WARNING, logger="dpsrm.training.prepare"):
        dpsrm.train(module, squared, (torch.randn(40, 30), torch.randn(40)), settings(), out=tmp_path / "run")
    (notice,) = [message for message in caplog.messages if "is discarded" in message]
    assert "parametrizations.weight.0._u" in notice
    assert all(torch.equal(value, before[name]) for name, value in module.named_buffers())


OWN_RULE = """
import torch, dpsrm
from torch import nn

class Mixes(torch.autograd.Function):
    @staticmethod
    def forward(x): return x.clone()
    @staticmethod
    def setup_context(ctx, inputs, output): pass
    @staticmethod
    def backward(ctx, g): return g
    @staticmethod
    def vmap(info, in_dims, x): return x - x.mean(0), 0

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 2)
    def forward(self, x): return Mixes.apply(self.w(x))

loss = lambda out, y: (out - y[:, None]).square().mean(1)
settings = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=10, steps=1), seed=1
)
dpsrm.train(Module(), loss, (torch.randn(40, 3), torch.randn(40)), settings, out="run")
"""


def test_a_batching_rule_of_ones_own_is_refused(tmp_path):
    """In a process of its own: such a class stays known to torch for as long as it lives."""
    done = subprocess.run([sys.executable, "-c", OWN_RULE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "sees all examples of a batch" in done.stderr
    assert "Mixes" in done.stderr
    assert not (tmp_path / "run").exists()
