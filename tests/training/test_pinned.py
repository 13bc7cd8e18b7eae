"""Seeded runs, pinned before training was rebuilt around one step: θ to the bit, and every charge.

`python tests/training/test_pinned.py` prints the table anew; it is kept in pinned.json. Bits are those of one kind of
processor: on another the numbers are compared within rounding instead.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpsrm import Performance, Privacy, Settings, Theory, Training
from dpsrm.core.events import event_to_json
from dpsrm.gradients import binary_loss, multiclass_loss
from dpsrm.methods import Agd, Disk, Gd, Rrpsgd, Sgd, Spider, Srm, Storm
from dpsrm.training import run_trials

PINNED = Path(__file__).with_name("pinned.json")
CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
CPU = sorted({line for line in CPUINFO.splitlines() if line.startswith(("model", "flags"))})
"""The processor's kind: on another one, libraries take other paths and the last bits differ."""
METHODS = {
    "srm": (Srm(max_diff_norm=0.3), {"first_batch": 30}),
    "srm-joint": (Srm(joint_norm=0.8, gamma=0.6), {"decay": "linear"}),
    "srm-relative": (Srm(relative=0.5), {"output": "last"}),
    "sgd": (Sgd(), {"output": "ema"}),
    "sgd-momentum": (Sgd(momentum=0.8), {"warmup": 3, "decay": "cosine"}),
    "sgd-adam": (Sgd(clip="auto"), {"optimizer": "adam"}),
    "dp-adam": (Sgd(), {"optimizer": "dp-adam", "regulariser": 0.01}),
    "gd": (Gd(), {"batch": None}),
    "agd": (Agd(), {"batch": None, "output": "last"}),
    "rrpsgd": (Rrpsgd(), {"batch": None, "steps": 30}),
    "disk": (Disk(), {"output": "random"}),
    "spider": (Spider(), {}),
    "storm": (Storm(), {}),
}
MODELS = ("logistic/auto", "mlp/functional", "mlp/loop", "mlp/ghost")
CASES = [(name, scheme, "logistic/auto") for name in METHODS for scheme in ("poisson", "wor")]
CASES += [(name, "poisson", model) for name in ("srm", "sgd", "disk") for model in MODELS[1:]]
CASES += [("theory", "wor", "logistic/auto")]


def run(name, scheme, model):
    """One trial: θ and what was charged."""
    kind, engine = model.split("/")
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(120, 6, generator=generator)
    inputs /= inputs.norm(dim=1, keepdim=True)
    labels = torch.randint(2 if kind == "logistic" else 3, (120,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        hidden = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        module, loss = (nn.Linear(6, 1), binary_loss) if kind == "logistic" else (hidden, multiclass_loss)
    privacy = Privacy(epsilon=30.0, delta=1e-4, sampling=scheme, accountant="rdp", noise_multiplier=1.5)
    method, training = METHODS.get(name, (Srm(), {}))
    constants = Theory(lipschitz=2.0, smoothness=1.0, zeta=0.5, n0=2.0) if name == "theory" else None
    settings = Settings(
        privacy=privacy if method.private else None,
        method=method,
        training=Training(**{"batch": 12, "steps": 11, "learning_rate": 0.4, **training}),
        theory=constants,
        performance=Performance(engine=engine),
        seed=7,
    )
    (result,) = run_trials(module, loss, (inputs, labels), [settings])
    theta = result.theta.numpy()
    return {
        "sha256": hashlib.sha256(theta.tobytes()).hexdigest(),
        "theta": [float(value) for value in theta],
        "charges": [[event_to_json(charge.event), charge.count] for charge in result.spending.charges],
    }


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_seeded_run_is_what_it_was(case):
    pinned = json.loads(PINNED.read_text())
    then, now = pinned["runs"]["-".join(case)], run(*case)
    np.testing.assert_allclose(now["theta"], then["theta"], rtol=1e-4, atol=1e-6)
    assert now["charges"] == then["charges"]
    if pinned["cpu"] == CPU:
        assert now["sha256"] == then["sha256"]


if __name__ == "__main__":
    runs = {"-".join(case): run(*case) for case in CASES}
    json.dump({"cpu": CPU, "runs": runs}, sys.stdout, indent=1)
