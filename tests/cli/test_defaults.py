"""One default sampling for every command, and one place where it stands; a schedule from public numbers."""

import inspect
import shutil
import subprocess

import pytest
import typer

import dpsrm as package
from conftest import SHARED
from dpsrm.cli.commands import app
from dpsrm.core.events import DEFAULT_SAMPLING, Scheme
from dpsrm.core.files import read_toml

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


BUDGET = ["--epsilon", 1, "--delta", 1e-5]


@pytest.fixture
def libsvm(tmp_path):
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{1 if i % 3 else -1} 1:{3 + i % 5} 2:{i % 3}\n" for i in range(3000)))
    return ["train", "--data", path, "--set", "data.features=2", *BUDGET, "--out", tmp_path / "run"]


def test_what_is_left_out_is_chosen_and_told(tmp_path, dpsrm, libsvm):
    told = dpsrm(*libsvm)
    assert told.code == 0
    assert "Chosen from n = 3000, ε = 1, δ = 1e-05 alone: sgd, 71 steps of 2048 records" in told.stderr
    written = read_toml(tmp_path / "run" / "config.toml")
    assert written["method"]["name"] == "sgd"
    assert (written["training"]["steps"], written["training"]["batch"]) == (71, 2048)
    assert written["preprocessing"]["normalise"] is True, "the step size is for records of norm 1"


def test_what_was_chosen_is_not_chosen_again(tmp_path, dpsrm, libsvm):
    dpsrm(*libsvm, "--seed", 1)
    again = dpsrm("train", tmp_path / "run" / "config.toml", "--out", tmp_path / "again")
    assert again.code == 0
    assert "Chosen" not in again.stderr
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--set", "training.steps=5"], {"steps": 5, "batch": 64, "normalise": False, "name": "srm"}),
        (["--method", "sgd", "--set", "training.epochs=1"], {"batch": 64, "normalise": False, "name": "sgd"}),
        (["--set", "data.normalise=false"], {"batch": 2048, "normalise": False, "name": "sgd"}),
    ],
)
def test_what_is_given_wins(tmp_path, answer, libsvm, given, kept):
    body = answer(*libsvm, *given)
    written = read_toml(tmp_path / "run" / "config.toml")
    found = {**body, "normalise": written["preprocessing"]["normalise"], "name": written["method"]["name"]}
    assert {name: found[name] for name in kept} == kept


def test_what_is_used_is_told_where_a_part_was_given(dpsrm, libsvm):
    told = dpsrm(*libsvm, "--set", "training.batch=300")
    assert "Training with srm: 100 steps of 300 records, learning rate 1." in told.stderr
    assert "what is left out has its usual value" in told.stderr
    assert "Chosen" not in told.stderr


def test_plan_has_a_row_for_the_default_and_names_a_method(dpsrm, answer):
    sizes = ["plan", "--n", 32561, *BUDGET, "--accountants", "rdp"]
    assert [(row["batch"], row["steps"]) for row in answer(*sizes)["rows"]][-1] == (2048, 771)
    assert "--method sgd --set training.batch=B --set training.epochs=10" in dpsrm(*sizes).stderr


def test_plan_asks_one_accountant_unless_told(answer):
    rows = answer("plan", "--n", 500, *BUDGET, "--batches", "100")["rows"]
    assert [(row["sampling"], row["accountant"]) for row in rows] == [("poisson", "pld"), ("wor", "pld")]


def test_methods_say_what_is_taken_where_nothing_is_named(dpsrm, libsvm):
    """As test_what_is_left_out_is_chosen_and_told and test_what_is_used_is_told_where_a_part_was_given find it."""
    told = dpsrm("methods")
    words = " ".join(told.stdout.split())
    assert "Name neither a method nor a training setting, and you get sgd" in words
    assert "Name training settings but no method, and you get srm" in words
    assert "--method srm" not in told.stderr


def test_plan_tells_the_default(dpsrm):
    told = dpsrm("plan", "--n", 32561, *BUDGET, "--batches", 500, "--accountants", "rdp")
    assert "two classes: 771 steps of 2048 records, learning rate 8" in " ".join(told.stdout.split())


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark datasets are not beside this checkout")
def test_a9a_untuned(tmp_path, answer):
    """Without privacy: log-loss .324, error 14.9 %."""
    subprocess.run([SHARED / "data" / "prepare", tmp_path / "data", "a9a"], check=True, capture_output=True)
    files = tmp_path / "data" / "a9a"
    given = ["--data", files / "a9a", "--test", files / "a9a.t", "--set", "data.features=123", "--seed", 1]
    found = answer("train", *given, *BUDGET, "--out", tmp_path / "run")["test"]
    assert found["log_loss"] <= 0.330
    assert found["error"] <= 0.154
    shutil.rmtree(tmp_path / "data")
