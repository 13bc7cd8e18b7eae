"""Numbers as targets: their range is public, nothing else is read, and predictions come back in their unit."""

import csv
import json

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.core.files import read_toml
from dpsrm.data import load, load_like
from dpsrm.data.ranges import TargetRange
from dpsrm.data.schema import schema_from
from dpsrm.training import RecordedRun, load_run, regression_metrics

SCHEMA = """
columns.age = {kind = "number", min = 0, max = 100}
columns.job = {kind = "category", values = ["miner", "nurse"]}
target = {column = "cost", min = 0, max = 1000}
"""


def write(path, *, rows, seed, labelled=True):
    """Costs between 0 and 1000 that grow with age, and are higher for miners."""
    rng = np.random.default_rng(seed)
    age, miner = rng.uniform(0, 100, rows), rng.random(rows) < 0.5
    cost = 5 * age + 300 * miner + 20 * rng.standard_normal(rows)
    with path.open("w", newline="") as file:
        table = [
            [a, "miner" if m else "nurse", *([c] if labelled else [])] for a, m, c in zip(age, miner, cost, strict=True)
        ]
        csv.writer(file).writerows([["age", "job", *(["cost"] if labelled else [])], *table])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("costs")
    write(folder / "train.csv", rows=3000, seed=0)
    write(folder / "test.csv", rows=500, seed=1)
    write(folder / "bare.csv", rows=500, seed=1, labelled=False)
    (folder / "schema.toml").write_text(SCHEMA)
    return folder


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("by", ["option", "schema"])
def test_a_regression_learns_and_predicts_in_the_targets_unit(files, tmp_path, answer, by, kind):
    declared = {
        "option": ["--target", "cost", "--task", "regression", "--target-range", "0,1000"],
        "schema": ["--schema", files / "schema.toml", "--task", "regression"],
    }[by]
    budget = ["--epsilon", "1", "--delta", "1e-5", "--seed", "1", "--out", tmp_path / "run"]
    model = ["--set", "model.kind=mlp"] if kind == "mlp" else []
    body = answer("train", "--data", files / "train.csv", "--test", files / "test.csv", *declared, *budget, *model)
    assert body["epsilon"] <= 1
    assert set(body["test"]) == {"r2", "rmse", "mae"}
    assert body["test"]["r2"] > 0.8, body["test"]
    config = read_toml(tmp_path / "run" / "config.toml")
    assert config["model"]["kind"] == kind
    assert config["training"]["optimizer"] == ("dp-adam" if kind == "mlp" else "constant")
    assert config["preprocessing"]["target_range"] == [0, 1000]

    run = load_run(tmp_path / "run")
    known = load_like(files / "test.csv", load(files / "train.csv", "cost", target_range=(0, 1000)))
    if by == "option":
        with torch.no_grad():
            assert torch.equal(run.outputs(files / "bare.csv"), run.module(known.records.inputs))
    predicted = run.predict(files / "bare.csv")
    assert predicted.min() >= 0
    assert predicted.max() <= 1000
    costs = TargetRange(0, 1000).unscaled(known.records.targets.numpy())
    assert regression_metrics(predicted, costs) == pytest.approx(body["test"])
    told = answer("predict", tmp_path / "run", "--data", files / "bare.csv", "--out", tmp_path / "answer.csv")
    assert told["prediction"] == predicted.tolist()
    with pytest.raises(InputError, match="no probabilities"):
        run.predict_proba(files / "bare.csv")


def test_targets_are_scaled_by_the_public_range_alone(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,y\n1,-50\n2,0\n3,15\n4,1e9\n")
    loaded = load(path, "y", target_range=(-10, 20))
    assert loaded.records.targets.tolist() == pytest.approx([-1, -1 / 3, 2 / 3, 1])
    assert loaded.classes == ()
    path.write_text("a,y\n3,15\n")
    alone = load(path, "y", target_range=(-10, 20))
    assert alone.records.targets[0] == loaded.records.targets[2], "another record must not move this one"
    assert json.dumps(alone.description["target_range"]) == "[-10.0, 20.0]"


@pytest.mark.parametrize("low", [-1e300, -3.0, 0.1])
def test_scaling_back_undoes_scaling(low):
    numbers = TargetRange(low, 7.0)
    values = np.linspace(low, 7.0, 50)
    assert numbers.unscaled(numbers.scaled(values.tolist())) == pytest.approx(values, rel=1e-6, abs=1e-6 * (7 - low))


@pytest.mark.parametrize("cell", ["", "many", "inf", "NaN"])
def test_targets_that_are_no_numbers_are_named(tmp_path, cell):
    (tmp_path / "x.csv").write_text(f"a,y\n1,2\n1,{cell}\n")
    with pytest.raises(InputError, match=r"finite number as its target.*row=2"):
        load(tmp_path / "x.csv", "y", target_range=(0, 1))


@pytest.mark.parametrize("ends", [(1, 1), (2, 1), (0, float("inf")), (float("nan"), 1), (0, 1, 2), (-1.7e308, 1.7e308)])
def test_ranges_that_are_none_are_refused(tmp_path, ends):
    (tmp_path / "x.csv").write_text("a,y\n1,2\n")
    with pytest.raises(InputError, match="range"):
        load(tmp_path / "x.csv", "y", target_range=ends)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--task", "regression"], "needs the public range of its target"),
        (["--task", "regresion", "--target-range", "0,1"], "must be one of classification, regression"),
        (["--task", "classification", "--target-range", "0,1"], "classes have no range"),
        (["--target-range", "0"], "--target-range takes LOW,HIGH"),
        (["--target-range", "5,a"], "--target-range takes LOW,HIGH"),
        (["--target-range", "0,1", "--classes", "a,b"], "classes or a range, not both"),
    ],
)
def test_contradictions_on_the_command_line_are_named(files, dpsrm, options, word):
    budget = ["--epsilon", "1", "--delta", "1e-5"]
    told = dpsrm("train", "--data", files / "train.csv", "--target", "cost", *options, *budget)
    assert told.code == 2
    assert word in told.stderr


def test_a_schema_says_classes_or_a_range(files, dpsrm):
    columns = {"a": {"kind": "number", "min": 0, "max": 1}}
    assert schema_from({"columns": columns, "target": {"min": -1, "max": 2}}).target_range == (-1, 2)
    for wrong in ({"min": 0}, {"min": 1, "max": 0}, {"min": 0, "max": 1, "classes": ["a", "b"]}):
        with pytest.raises(InputError, match=r"\[target\]"):
            schema_from({"columns": columns, "target": wrong})
    arguments = ["--schema", files / "schema.toml", "--task", "classification", "--epsilon", "1", "--delta", "1e-5"]
    told = dpsrm("train", "--data", files / "train.csv", *arguments)
    assert told.code == 2
    assert "with min and max is a number" in told.stderr


def test_negative_ranges_can_be_given(tmp_path, answer):
    rows = "".join(f"{k % 9},{k % 9 - 4}\n" for k in range(300))
    (tmp_path / "x.csv").write_text("a,y\n" + rows)
    task = ["--target", "y", "--task", "regression", "--target-range", "-4,4"]
    answer("train", "--data", tmp_path / "x.csv", *task, "--epsilon", "1", "--delta", "1e-4", "--out", tmp_path / "run")
    assert load_run(tmp_path / "run").config["data"]["target_range"] == [-4, 4]


def test_metrics_are_the_textbooks():
    y, p = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 4.0])
    found = regression_metrics(p, y)
    assert found == pytest.approx({"r2": 1 - 5 / 14, "rmse": np.sqrt(5 / 3), "mae": 1.0})
    assert np.isnan(regression_metrics(p, np.ones(3))["r2"])


def test_an_interrupted_regression_is_resumed_to_the_same_bits(files, tmp_path, dpsrm, answer, monkeypatch):
    arguments = ["train", "--data", files / "train.csv", "--schema", files / "schema.toml", "--epsilon", "1"]
    arguments += ["--delta", "1e-5", "--seed", "1", "--set", "model.kind=mlp", "--set", "training.epochs=1"]
    arguments += ["--set", "performance.checkpoint_steps=5"]
    answer(*arguments, "--out", tmp_path / "whole")
    steps, advance = iter(range(12)), RecordedRun.advance

    def dying(run, *drawn):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return advance(run, *drawn)

    with monkeypatch.context() as patch:
        patch.setattr(RecordedRun, "advance", dying)
        assert dpsrm(*arguments, "--out", tmp_path / "run").code != 0
    answer("train", "--resume", tmp_path / "run")
    for name in ("model.safetensors", "ledger.jsonl", "config.toml"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
