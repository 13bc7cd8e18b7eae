"""`dpsrm reproduce`: the committed results give the committed tables, and what cannot be done is said."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

from conftest import SHARED
from dpsrm.data.public import LIBSVM_SETS, PublicFile
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.logistic import REGULARISER
from dpsrm.experiments.pretraining import trunk
from dpsrm.experiments.problems import ABOUT, load_problem
from dpsrm.experiments.reproduction import Reproduction

ROOT = Path(__file__).parents[2]
FIELDS = (
    "method",
    "epsilon",
    "sampling",
    "accountant",
    "trials",
    "test_objective",
    "test_log_loss",
    "test_error",
    "gradient_norm",
    "seconds",
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return tmp_path_factory.mktemp("docs")


@pytest.mark.parametrize("problem", ["a9a", "ijcnn1"])
def test_the_docs_tables_are_those_of_the_results(dpsrm, published, problem):
    done = dpsrm("reproduce", problem, "--from-results", "--results", ROOT / "results", "--docs", published, "--json")
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert all(set(FIELDS) <= set(row) for row in rows)
    assert all(row["trials"] == 30 for row in rows)
    assert all(row["epsilon_proved"] <= row["epsilon"] for row in rows if row["epsilon"] is not None)
    assert (published / f"{problem}-table.md").read_text() == (ROOT / "docs" / f"{problem}-table.md").read_text()
    assert {path.name for path in (published / "images").glob(f"{problem}-*")} == {
        f"{problem}-0_{digit}.{kind}" for digit in (2, 5) for kind in ("png", "svg")
    }
    assert problem in (published / "report.html").read_text()


@pytest.mark.parametrize("problem", ["cifar10-cnn5", "cifar10-cnn6", "features", "mnist"])
def test_the_images_rows_are_those_of_the_results(dpsrm, published, problem):
    """Every row has five trials at least, keeps its budget, and is in the docs."""
    done = dpsrm("reproduce", problem, "--from-results", "--results", ROOT / "results", "--docs", published, "--json")
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert rows
    assert all(set(FIELDS) <= set(row) for row in rows)
    assert all(row["trials"] >= 5 and 0 < row["test_error"] < 1 for row in rows)
    assert all(row["epsilon_proved"] <= row["epsilon"] for row in rows if row["epsilon"] is not None)
    for name in {row["problem"] for row in rows}:
        table = f"{name}-table.md"
        assert (published / table).read_text() == (ROOT / "docs" / table).read_text()


@pytest.mark.parametrize("problem", sorted(name for name, about in ABOUT.items() if about.images))
def test_the_seconds_of_all_rows_were_measured_side_by_side(problem):
    """A row whose seconds are another machine's has no place beside them."""
    lab = Lab(ROOT / "results", ROOT / "results")
    recipes = Reproduction(problem=problem, lab=lab).recipes()
    measured = json.loads((ROOT / "results" / f"{problem}-seconds.json").read_text())
    assert {recipe.key for recipe in recipes if lab.read(problem, recipe)} == set(measured)


def test_all_rows_used_the_trunk_that_is_kept_beside_them(tmp_path):
    """The folder `cnn6` of the results, copied into a data folder, is the trunk of every trial."""
    shutil.copytree(ROOT / "results" / "cnn6", tmp_path / "cnn6")
    kept = trunk(tmp_path).digest
    trials = map(json.loads, (ROOT / "results" / "cifar10-cnn6.jsonl").read_text().splitlines())
    assert {trial["trunk"] for trial in trials} == {kept}


def test_what_cannot_be_reproduced_is_said(dpsrm, tmp_path, monkeypatch):
    unknown = dpsrm("reproduce", "imagenet")
    assert unknown.code == 2
    assert "a9a, ijcnn1" in unknown.stderr
    nothing = dpsrm("reproduce", "a9a", "--from-results", "--results", tmp_path / "none")
    assert nothing.code == 2
    assert "--from-results" in nothing.stderr
    nowhere = PublicFile("a9a/a9a", "00", "http://127.0.0.1:9/a9a")
    monkeypatch.setitem(LIBSVM_SETS, "a9a", (nowhere, nowhere))
    offline = dpsrm("reproduce", "a9a", "--quick", "--results", tmp_path / "own", "--data-dir", tmp_path / "data")
    assert offline.code == 2
    assert "DPSRM_DATA" in offline.stderr
    workers = dpsrm("reproduce", "a9a", "--workers", 0)
    assert workers.code == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark datasets are not beside this checkout")
@pytest.mark.parametrize(("problem", "train", "test"), [("a9a", 0.3343, 0.3330), ("ijcnn1", 0.1958, 0.2253)])
def test_what_the_exact_minimiser_reaches(tmp_path, problem, train, test):
    """Independent of all methods here: L-BFGS on the training objective. No goal below its test objective is for us."""
    subprocess.run([SHARED / "data" / "prepare", tmp_path, problem], check=True, capture_output=True)
    data = load_problem(problem, tmp_path)
    y = data.train.targets.numpy()
    X = np.hstack([data.train.inputs.double().numpy(), np.ones((len(y), 1))])

    def objective(theta):
        logits, square = X @ theta, 1 + theta**2
        value = np.mean(np.logaddexp(0, logits) - y * logits) + REGULARISER * np.sum(theta**2 / square)
        return value, X.T @ (expit(logits) - y) / len(y) + 2 * REGULARISER * theta / square**2

    found = minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    reached = data.measures("", torch.from_numpy(found.x))
    assert reached["train_objective"] == pytest.approx(train, abs=1e-4)
    assert reached["test_objective"] == pytest.approx(test, abs=2e-4)
    assert reached["gradient_norm"] < 1e-3
