"""Experiments: data that is checked, recipes that can be stored, trials that are kept, rows that say what they mean."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime

from dpsrm.core.errors import InputError
from dpsrm.data import public as public_data
from dpsrm.data.public import PublicFile, public_files
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.logistic import REGULARISER
from dpsrm.experiments.recipes import Recipe, papers_noise, with_papers_noise
from dpsrm.experiments.runner import missing, run_recipe
from toy import RECIPE, toy_problem

problem = pytest.fixture(scope="module")(toy_problem)


def test_measures_are_those_of_the_objective(problem):
    """The gradient norm against numerical differentiation, the objective against its formula."""
    theta = torch.linspace(-1, 1, 7)

    def objective(at):
        logits = problem.train.inputs.double().numpy() @ at[:-1] + at[-1]
        loss = np.mean(np.logaddexp(0, logits) - problem.train.targets.numpy() * logits)
        return loss + REGULARISER * np.sum(at**2 / (1 + at**2))

    found = problem.measures("", theta)
    at = theta.double().numpy()
    assert found["train_objective"] == pytest.approx(objective(at), rel=1e-6)
    assert found["gradient_norm"] == pytest.approx(np.linalg.norm(approx_fprime(at, objective, 1e-7)), rel=1e-4)


def test_a_trial_reports_what_it_did(problem):
    (trial,) = run_recipe(problem, RECIPE, [3])
    assert trial["epsilon_proved"] <= 2.0
    assert trial["passes"] == pytest.approx(3.0)
    assert trial["gradients"] == 40 + 29 * 40 * 2
    assert 5 <= len(trial["curve"]) <= 30
    assert trial["test_error"] < 0.4
    for name, value in run_recipe(problem, RECIPE, [1, 3], points=0)[1].items():
        assert value == trial[name] or name in ("seconds", "curve"), name
    json.dumps(trial)


def test_results_are_kept_and_only_the_missing_is_run(tmp_path):
    lab = Lab(tmp_path, tmp_path / "results")
    lab.add("a9a", RECIPE, [{"seed": 1, "x": 1}, {"seed": 0, "x": 0}])
    assert [trial["seed"] for trial in lab.read("a9a", RECIPE)] == [0, 1]
    jobs = missing(lab, "a9a", [RECIPE, RECIPE], range(6), validation=False)
    assert [job.seeds for job in jobs] == [(2, 3, 4, 5)]
    lab.add("a9a", RECIPE, [{"seed": seed} for seed in range(2, 6)])
    assert missing(lab, "a9a", [RECIPE], range(6), validation=False) == []
    assert len(missing(lab, "a9a", [RECIPE], range(6), validation=True)) == 1


def test_trials_on_another_trunk_are_not_added(tmp_path):
    lab = Lab(tmp_path, tmp_path)
    lab.need_same_trunk("cifar10-cnn6", "abc")
    lab.add("cifar10-cnn6", RECIPE, [{"seed": 0, "trunk": "abc"}])
    lab.need_same_trunk("cifar10-cnn6", "abc")
    with pytest.raises(InputError, match=r"one pretrained trunk.*abc.*def"):
        lab.need_same_trunk("cifar10-cnn6", "def")


def test_a_torn_line_and_lost_numbers_do_no_harm(tmp_path):
    lab = Lab(tmp_path, tmp_path)
    lab.add("a9a", RECIPE, [{"seed": 0, "test_objective": float("nan"), "noise_multiplier": 1.0}])
    with (tmp_path / "a9a.jsonl").open("a") as file:
        file.write('{"recipe": {"label": "DP-S')
    lab.add("a9a", RECIPE, [{"seed": 1}])
    first, second = lab.read("a9a", RECIPE)
    assert first == {"seed": 0, "test_objective": None, "noise_multiplier": 1.0}
    assert second == {"seed": 1}


def test_a_run_that_diverges_is_kept_as_one(problem, tmp_path):
    wild = replace(RECIPE, training={"batch": 40, "steps": 9, "learning_rate": 1e38})
    lab = Lab(tmp_path, tmp_path)
    lab.add("a9a", wild, run_recipe(problem, wild, [0]))
    (trial,) = lab.read("a9a", wild)
    assert trial["test_objective"] is None
    assert trial["noise_multiplier"] > 0


def test_a_recipes_key_is_all_but_its_label():
    assert replace(RECIPE, label="other").key == RECIPE.key
    assert replace(RECIPE, epsilon=0.5).key != RECIPE.key
    assert replace(RECIPE, sampling="poisson").key != RECIPE.key


def test_the_papers_noise_by_hand():
    """β = 1/2, α = 2·ln(1e5)/0.2 + 1 = 116.13: s² = 3.5·q²·T·α/(β·0.2)."""
    q, T = 50 / 32561, 2605
    by_hand = (3.5 * q**2 * T * 116.129 / 0.1) ** 0.5
    assert papers_noise(q, T, 0.2) == pytest.approx(by_hand, rel=1e-3)
    recipe = Recipe(label="x", method="srm", training={"batch": 50, "steps": T}, epsilon=0.2)
    assert with_papers_noise(recipe, 32561).noise_multiplier == pytest.approx(by_hand, rel=1e-3)


def test_a_file_with_another_digest_is_refused(tmp_path):
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a").write_text("+1 1:1\n")
    with pytest.raises(InputError, match="SHA-256"):
        public_files("a9a", tmp_path)


def test_without_a_network_the_error_says_what_to_do(tmp_path, monkeypatch):
    nowhere = PublicFile("a9a/a9a", "00", "http://127.0.0.1:9/a9a")
    monkeypatch.setitem(public_data.LIBSVM_SETS, "a9a", (nowhere, nowhere))
    with pytest.raises(InputError, match="DPSRM_DATA"):
        public_files("a9a", tmp_path)
    with pytest.raises(InputError, match="ijcnn1"):
        public_files("mnist", tmp_path)


def test_the_held_out_records_are_a_fixed_random_fifth(problem):
    first, again = problem.validation(), problem.validation()
    assert len(first.test) == 80
    assert len(first.train) == 320
    assert torch.equal(first.test.inputs, again.test.inputs)
    where = [int((problem.train.inputs == row).all(1).nonzero()[0]) for row in first.test.inputs]
    assert len(set(where)) == 80
    assert min(np.bincount(np.array(where) % 10, minlength=10)) >= 2
    assert first.features == problem.features
