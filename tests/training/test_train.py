"""Training: the ledger is the plan's, the folder is complete, the budget holds, a seed repeats and says so."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

from conftest import make_problem
from dpsrm.accounting.calibrate import accountant
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.core.errors import BudgetExceeded, InputError, LedgerError
from dpsrm.core.events import Scheme
from dpsrm.data import Records
from dpsrm.gradients import engine as build_engine
from dpsrm.methods import Srm
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, make_plan, train
from dpsrm.training import step as step_module

PRIVACY = Privacy(epsilon=2.0, delta=1e-5)


def settings(**changes):
    base = {"privacy": PRIVACY, "training": Training(batch=20, first_batch=50, steps=15, learning_rate=0.1), "seed": 3}
    return Settings(**{**base, **changes})


def go(tmp_path, name="run", kind="logistic", data=None, **changes):
    objective, records = make_problem(kind)
    data = Records(*records(200)) if data is None else data
    return train(objective.module, objective.loss, data, settings(**changes), out=tmp_path / name)


def vector(run):
    return torch.cat([p.detach().reshape(-1) for p in run.module.parameters()])


@pytest.mark.parametrize("kind", ["logistic", "mlp", "cnn"])
def test_the_ledger_written_is_the_ledger_predicted(tmp_path, kind):
    run = go(tmp_path, kind=kind)
    facts = read_ledger(run.folder.ledger)
    assert facts.spending == run.plan.spending
    assert facts.released == facts.spending.releases == 15
    assert run.epsilon <= 2.0
    assert run.epsilon == accountant("pld").epsilon(facts.spending, 1e-5).epsilon
    assert verify(run.folder.path).ok


def test_calibration_spends_the_budget_but_not_more(tmp_path):
    run = go(tmp_path)
    assert 0.99 * 2.0 < run.epsilon <= 2.0
    shown = rounded_up(run.epsilon, 4)
    assert run.epsilon <= float(shown) < run.epsilon + 0.001
    assert repr(run) == f"<Run {run.folder.path}: ε={shown}, δ=1e-05>"
    sizes = {charge.event.sampling.batch: charge.count for charge in run.plan.spending.charges}
    assert sizes == {50: 1, 20: 14}


def test_a_seed_repeats_and_every_file_says_so(tmp_path):
    first, second = go(tmp_path, "a"), go(tmp_path, "b")
    assert torch.equal(vector(first), vector(second))
    assert not read_ledger(first.folder.ledger).header.private_randomness
    assert "not private" in first.folder.ledger.read_text()
    assert "Reproducible, not private" in first.folder.certificate.read_text()


def test_without_a_seed_no_two_runs_are_alike(tmp_path):
    first, second = go(tmp_path, "a", seed=None), go(tmp_path, "b", seed=None)
    assert not torch.equal(vector(first), vector(second))
    assert read_ledger(first.folder.ledger).header.private_randomness
    assert "not private" not in first.folder.certificate.read_text()


def test_both_engines_train_the_same_model(tmp_path):
    fast = go(tmp_path, "a", performance=Performance(engine="functional"))
    slow = go(tmp_path, "b", performance=Performance(engine="loop"))
    assert torch.allclose(vector(fast), vector(slow), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_a_batch_in_pieces_trains_the_same_model(tmp_path, engine):
    whole, pieces = (
        go(tmp_path, str(most), kind="mlp", performance=Performance(engine=engine, max_physical_batch=most))
        for most in (50, 3)
    )
    assert torch.allclose(vector(whole), vector(pieces), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="max_physical_batch"):
        Performance(max_physical_batch=0)


def test_the_setting_reaches_the_engine():
    objective, _ = make_problem("mlp")
    assert build_engine("auto", objective, max_physical_batch=3).max_physical_batch == 3
    assert build_engine("loop", objective, max_physical_batch=3) is not None


def test_arrays_tensors_and_datasets_train_the_same_model(tmp_path):
    _, records = make_problem("logistic")
    X, y = records(200)
    runs = [
        go(tmp_path, name, data=data)
        for name, data in (
            ("records", Records(X, y)),
            ("numpy", (X.numpy().astype(np.float64), y.numpy())),
            ("dataset", TensorDataset(X, y)),
        )
    ]
    assert torch.equal(vector(runs[0]), vector(runs[1]))
    assert torch.equal(vector(runs[0]), vector(runs[2]))


def test_the_model_file_has_the_modules_own_names(tmp_path):
    run = go(tmp_path, kind="mlp")
    saved = load_file(run.folder.model)
    assert set(saved) == set(run.module.state_dict())
    assert all(torch.equal(saved[name], value) for name, value in run.module.state_dict().items())


def test_exact_facts_are_only_in_private(tmp_path):
    run = go(tmp_path)
    assert (run.folder.private.stat().st_mode & 0o077) == 0
    lines = (run.folder.private / "progress.jsonl").read_text().splitlines()
    assert len(lines) == 15
    assert set(json.loads(lines[0])["private"]) == {"loss", "clipped", "nonfinite"}
    public = [path for path in run.folder.path.iterdir() if path.is_file()]
    expected = {"ledger.jsonl", "model.safetensors", "config.toml", "environment.json", "certificate.md"}
    expected |= {"report.html", "statement.json", "model_card.md"}
    assert {path.name for path in public} == expected
    assert not any("loss" in path.read_text() for path in public if path.suffix != ".safetensors")


def test_a_non_private_run_says_so(tmp_path):
    run = go(tmp_path, privacy=None)
    assert run.epsilon == math.inf
    assert "No guarantee" in run.folder.certificate.read_text()
    assert verify(run.folder.path).ok


def test_under_add_remove_the_certificate_does_not_claim_to_hide_n(tmp_path):
    run = go(tmp_path, privacy=Privacy(epsilon=2.0, delta=1e-5, adjacency="add-remove"))
    assert "number of records, which set that rate" in run.folder.certificate.read_text()
    assert verify(run.folder.path).ok


def test_a_given_noise_may_not_exceed_the_budget(tmp_path):
    with pytest.raises(BudgetExceeded, match="fewer steps"):
        go(tmp_path, privacy=Privacy(epsilon=2.0, delta=1e-5, noise_multiplier=0.3))
    assert not (tmp_path / "run").exists()


def test_a_loop_that_does_more_than_planned_is_stopped_before_it_overspends(tmp_path, monkeypatch):
    """Seeded bug: the loop draws larger batches than planned; the budget stops it at the first such release."""
    real = step_module.draw

    def larger(sampling, stream):
        object.__setattr__(sampling, "batch", 150)
        return real(sampling, stream)

    monkeypatch.setattr(step_module, "draw", larger)
    with pytest.raises((BudgetExceeded, LedgerError)):
        go(tmp_path)


def test_a_ledger_that_differs_from_the_plan_is_reported(tmp_path, monkeypatch):
    objective, records = make_problem("logistic")
    plan = make_plan(Srm(), Training(batch=20, steps=16).schedule(200), n=200, privacy=PRIVACY)

    def other_plan(progress):
        object.__setattr__(seen[0].plan, "spending", plan.spending)

    seen, module = [], sys.modules["dpsrm.training.train"]
    real = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    with pytest.raises(LedgerError, match="predicted"):
        train(
            objective.module,
            objective.loss,
            Records(*records(200)),
            settings(),
            out=tmp_path / "run",
            callbacks=[other_plan],
        )


def test_an_existing_run_is_not_touched_unless_told(tmp_path):
    run = go(tmp_path)
    before = run.folder.ledger.read_bytes()
    with pytest.raises(InputError, match="overwrite"):
        go(tmp_path)
    assert run.folder.ledger.read_bytes() == before
    objective, records = make_problem("logistic")
    train(objective.module, objective.loss, Records(*records(200)), settings(), out=run.folder.path, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="only a run"):
        train(
            objective.module, objective.loss, Records(*records(200)), settings(), out=tmp_path / "other", overwrite=True
        )
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("output", ["last", "random", "tail", "ema"])
@pytest.mark.parametrize("optimizer", ["constant", "adam"])
def test_outputs_and_optimizers(tmp_path, output, optimizer):
    training = Training(batch=20, steps=8, learning_rate=0.01, output=output, optimizer=optimizer, regulariser=1e-3)
    run = go(tmp_path, training=training)
    assert torch.isfinite(vector(run)).all()
    assert verify(run.folder.path).ok


def test_a_full_first_batch_is_charged_as_one(tmp_path):
    run = go(tmp_path, training=Training(batch=20, first_batch=200, steps=5))
    assert run.plan.spending.charges[0].event.sampling.scheme is Scheme.FULL


def test_epochs_count_records_drawn():
    schedule = Training(batch=100, first_batch=300, epochs=4).schedule(1000)
    assert schedule.first_batch + (schedule.steps - 1) * schedule.batch == 4000


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": 201},
        {"first_batch": 201},
        {"batch": 0},
        {"steps": 0},
        {"epochs": -1.0},
        {"steps": 2, "epochs": 1.0},
        {"learning_rate": 0.0},
        {"optimizer": "lion"},
        {"output": "best"},
        {"regulariser": -1.0},
    ],
)
def test_training_settings_that_cannot_train_are_refused(tmp_path, bad):
    with pytest.raises(InputError):
        go(tmp_path, training=Training(**bad))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "bad", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 0.0}, {"delta": 1.0}, {"noise_multiplier": -1.0}]
)
def test_promises_that_are_none_are_refused(bad):
    with pytest.raises(InputError):
        Privacy(**{"epsilon": 1.0, "delta": 1e-5, **bad})


def test_training_learns(tmp_path):
    """Separable records: a private model at ε = 8 must be far better than chance."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(2000, 5, generator=generator)
    y = (X[:, 0] > 0).long()
    objective, _ = make_problem("logistic")
    run = train(
        objective.module,
        objective.loss,
        (X, y),
        settings(privacy=Privacy(epsilon=8.0, delta=1e-5), training=Training(batch=200, steps=60), method=Srm()),
        out=tmp_path / "run",
    )
    with torch.no_grad():
        error = ((run.module(X).squeeze(1) > 0).long() != y).double().mean()
    assert error < 0.1
