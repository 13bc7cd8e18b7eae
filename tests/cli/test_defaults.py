"""One default sampling for every command, and one place where it stands."""

import inspect

import pytest
import typer

import dpsrm as package
from dpsrm.cli.commands import app
from dpsrm.core.events import DEFAULT_SAMPLING, Scheme

SIZES = ["--n", 50000, "--batch", 256, "--steps", 200, "--delta", 1e-5]


def commands(application):
    """Every command's function, those of groups included."""
    yield from (each.callback for each in application.registered_commands)
    for group in application.registered_groups:
        yield from commands(group.typer_instance)


def test_every_sampling_option_has_the_default():
    options = [inspect.signature(command).parameters.get("sampling") for command in commands(app)]
    found = [option.default for option in options if option is not None]
    assert len(found) >= 3
    assert set(found) == {DEFAULT_SAMPLING} == {Scheme.POISSON}
    assert package.Privacy(epsilon=1, delta=1e-5).sampling is DEFAULT_SAMPLING
    assert isinstance(app, typer.Typer)


@pytest.mark.parametrize("command", [["account", "--noise", 1], ["calibrate", "--epsilon", 2]])
def test_account_and_calibrate(command, answer):
    default = answer(*command, *SIZES)
    assert default["sampling"] == "poisson"
    assert default == answer(*command, *SIZES, "--sampling", "poisson")
    assert default != answer(*command, *SIZES, "--sampling", "wor")


def test_plan_and_account_mean_the_same(answer):
    """The noise of plan's first row costs, by account's defaults, the ε that plan was asked for."""
    row = answer("plan", "--n", 5000, "--epsilon", 1, "--delta", 1e-5, "--batches", "100", "--accountants", "pld")[
        "rows"
    ][0]
    sizes = ["--n", 5000, "--batch", 100, "--steps", row["steps"], "--delta", 1e-5]
    assert row["sampling"] == "poisson"
    assert answer("account", *sizes, "--noise", row["noise_multiplier"])["epsilon"] == pytest.approx(1, rel=1e-3)


def test_train_and_demo(tmp_path, answer):
    (tmp_path / "x.csv").write_text("a,y\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(300)))
    budget = ["--epsilon", 2, "--delta", 1e-4, "--set", "training.steps=2"]
    answer("train", "--data", tmp_path / "x.csv", "--target", "y", *budget, "--out", tmp_path / "train")
    answer("demo", "--out", tmp_path / "demo")
    for name in ("train", "demo"):
        ledger = (tmp_path / name / "ledger.jsonl").read_text()
        assert '"poisson"' in ledger
        assert '"wor"' not in ledger
