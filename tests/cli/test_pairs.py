"""`data.features = "pairs"`: what two columns say together can be learned, and is predicted from the run folder."""

import csv
import json
import random

import pytest


@pytest.fixture
def exclusive(tmp_path):
    """A table whose answer is whether two words differ."""
    rng = random.Random(0)
    rows = [[rng.choice(["up", "down"]), rng.choice(["red", "blue"]), rng.randint(20, 70)] for _ in range(3000)]
    answers = ["yes" if (a == "up") != (b == "red") else "no" for a, b, _ in rows]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["way", "colour", "age", "ill"], *([*r, y] for r, y in zip(rows, answers, strict=True))]
        )
    return tmp_path / "x.csv"


@pytest.mark.parametrize(("given", "low", "high"), [([], 0.4, 0.8), (["--set", "data.features=pairs"], 0.97, 1.0)])
def test_pairs_are_learned_and_predicted(dpsrm, exclusive, tmp_path, given, low, high):
    budget = ["--epsilon", 3, "--delta", 1e-5, "--seed", 0, "--out", tmp_path / "run"]
    done = dpsrm("train", "--data", exclusive, "--target", "ill", *budget, *given)
    assert done.code == 0, done.stderr
    told = dpsrm("predict", tmp_path / "run", "--data", exclusive, "--json")
    assert told.code == 0, told.stderr
    found = json.loads(told.stdout)["prediction"]
    lines = exclusive.read_text().splitlines()[1:]
    right = ["1" if line.endswith("yes") else "0" for line in lines]
    assert low <= sum(a == b for a, b in zip(found, right, strict=True)) / len(right) <= high


def test_pairs_are_for_tables_without_a_schema(dpsrm, tmp_path):
    (tmp_path / "x.libsvm").write_text("1 1:1\n-1 2:1\n")
    told = dpsrm(
        "train", "--data", tmp_path / "x.libsvm", "--epsilon", 1, "--delta", 1e-5, "--set", "data.features=pairs"
    )
    assert told.code == 2
    assert "pairs for a table without a schema only" in told.stderr
