"""Who receives a run needs no torch to check it; who plans one needs none to account for it."""

import json

import pytest
import torch
from torch import nn

import dpsrm
from packages import run_without

CLI = "import sys; sys.argv[0] = 'dpsrm'; from dpsrm.cli.app import main; main()"
HEAVY = {"torch", "numba", "pandas", "pyarrow", "matplotlib", "sklearn", "statsmodels", "joblib", "jinja2"}
"""What would make these commands slow to start."""
SIZES = ["--n", 5000, "--batch", 100, "--steps", 50, "--delta", 1e-5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small finished run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 4, generator=generator)
    settings = dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=2.0, delta=1e-4), training=dpsrm.Training(batch=30, steps=8)
    )
    loss = nn.CrossEntropyLoss(reduction="none")
    dpsrm.train(nn.Linear(4, 2), loss, (inputs, (inputs[:, 0] > 0).long()), settings, out=out)
    return out


def command(*arguments):
    """Run a command where torch and other heavy packages cannot be imported; it must succeed."""
    done = run_without(HEAVY, CLI, *arguments)
    assert done.returncode == 0, done.stderr
    assert all(line == "" or line.startswith(("Next: ", "  dpsrm ")) for line in done.stderr.splitlines()), done.stderr
    return done.stdout


def test_verify(folder):
    body = json.loads(command("verify", folder, "--json"))
    assert body["ok"]
    assert body["epsilon"] == dpsrm.verify(folder).guarantee.epsilon
    assert "the ledger is intact" in command("verify", folder, "--expect", body["head"])


def test_verify_still_refuses_what_was_changed(folder, tmp_path):
    changed = tmp_path / "run"
    changed.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (changed / file.name).write_bytes(file.read_bytes())
    (changed / "certificate.md").write_text("ε = 0")
    done = run_without({"torch"}, CLI, "verify", changed)
    assert done.returncode == 1
    assert "certificate.md" in done.stdout


def test_account_and_calibrate():
    epsilon = json.loads(command("account", *SIZES, "--noise", 2, "--json"))["epsilon"]
    noise = json.loads(command("calibrate", *SIZES, "--epsilon", epsilon, "--json"))["noise_multiplier"]
    assert noise == pytest.approx(2, rel=1e-3)


def test_budget(tmp_path):
    command("budget", "init", tmp_path / "all.budget", "--epsilon", 2, "--delta", 1e-5)
    assert json.loads(command("budget", "show", tmp_path / "all.budget", "--json"))["remaining"] == 2


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"], ["train", "--help"], ["--version"]])
def test_help_and_version(arguments):
    assert "dpsrm" in command(*arguments)
    assert command("--version") == f"dpsrm {dpsrm.__version__}\n"


def test_the_package_verifies_without_torch(folder):
    code = "import dpsrm, sys; assert dpsrm.verify(sys.argv[1]).ok; print(dpsrm.__version__)"
    assert run_without({"torch"}, code, folder).stdout == f"{dpsrm.__version__}\n"
