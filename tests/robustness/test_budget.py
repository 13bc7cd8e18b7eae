"""A shared budget: composed, kept, never taken twice, never given back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpsrm
from conftest import make_problem
from dpsrm.accounting import accountant
from dpsrm.accounting.budget import Budget, create_budget, read_budget, reserve
from dpsrm.core.errors import BudgetExceeded, InputError, LedgerError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, PureRelease, Sampling, Scheme, Spending
from dpsrm.core.ledger import read_ledger
from dpsrm.data import Records
from dpsrm.methods import Agd
from dpsrm.training import Performance, Privacy, Settings, Training, train

EVENT = GaussianRelease(noise_multiplier=2.0, sampling=Sampling(scheme=Scheme.WOR, population=1000, batch=50))
SPENDING = Spending.of([Charge(EVENT, 20)], adjacency=Adjacency.REPLACE_ONE)


@pytest.fixture
def budget(tmp_path):
    def make(epsilon=2.0, adjacency=Adjacency.REPLACE_ONE):
        create_budget(tmp_path / "budget", Budget(epsilon=epsilon, delta=1e-5, adjacency=adjacency))
        return tmp_path / "budget"

    return make


def go(tmp_path, name, budget, *, epsilon=1.0, n=200, **changes):
    objective, records = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=epsilon, delta=1e-5),
        training=Training(batch=20, steps=15, learning_rate=0.1),
        budget=str(budget),
        **changes,
    )
    return train(objective.module, objective.loss, Records(*records(n)), settings, out=tmp_path / name)


def test_two_processes_racing_for_the_last_of_a_budget(tmp_path):
    driver = Path(__file__).with_name("race_driver.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(dpsrm.__file__).parents[1])}
    command = [sys.executable, str(driver), str(tmp_path), "--races", "100"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"races": 100, "exactly_one": 100, "other": []}


def test_runs_are_composed_not_added(tmp_path, budget):
    path = budget(epsilon=1.6)
    go(tmp_path, "a", path)
    go(tmp_path, "b", path)
    found = read_budget(path)
    ledgers = [read_ledger(tmp_path / name / "ledger.jsonl").spending for name in "ab"]
    union = Spending.of([c for each in ledgers for c in each.charges], adjacency=Adjacency.REPLACE_ONE)
    assert found.spent == accountant("pld").epsilon(union, 1e-5).epsilon
    assert 1.0 < found.spent < 1.6
    assert found.remaining == pytest.approx(1.6 - found.spent)


def test_a_run_that_would_exceed_it_does_not_start(tmp_path, budget):
    path = budget(epsilon=1.2)
    go(tmp_path, "a", path)
    with pytest.raises(BudgetExceeded, match="not started"):
        go(tmp_path, "b", path)
    assert not (tmp_path / "b").exists()
    assert len(read_budget(path).reservations) == 1


def test_a_refused_run_overwrites_nothing(tmp_path, budget):
    path = budget(epsilon=1.2)
    run = go(tmp_path, "a", path)
    objective, records = make_problem("logistic")
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), budget=str(path))
    with pytest.raises(BudgetExceeded):
        train(objective.module, objective.loss, Records(*records(200)), settings, out=run.folder.path, overwrite=True)
    assert run.folder.model.exists()


def test_a_run_that_dies_stays_charged_and_resumes_without_a_second_charge(tmp_path, budget):
    path = budget(epsilon=1.2)

    def stop(progress):
        if progress.step == 7:
            raise KeyboardInterrupt

    objective, records = make_problem("logistic")
    data = Records(*records(200))
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5),
        training=Training(batch=20, steps=15),
        performance=Performance(checkpoint_steps=3),
        budget=str(path),
    )
    with pytest.raises(KeyboardInterrupt):
        train(objective.module, objective.loss, data, settings, out=tmp_path / "a", watch=stop)
    spent = read_budget(path).spent
    assert 0.9 < spent <= 1.0
    dpsrm.resume(tmp_path / "a", objective.module, objective.loss, data)
    assert read_budget(path).spent == spent
    assert len(read_budget(path).reservations) == 1


def test_an_adaptive_run_reserves_all_it_may_spend(tmp_path, budget):
    path = budget(epsilon=1.2)
    objective, records = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5), method=Agd(), training=Training(steps=5), budget=str(path)
    )
    run = train(objective.module, objective.loss, Records(*records(200)), settings, out=tmp_path / "agd")
    found = read_budget(path)
    assert found.spent >= run.epsilon
    assert found.spent == pytest.approx(1.0, rel=1e-3)


def test_other_records_other_adjacency_and_no_privacy_are_refused(tmp_path, budget):
    path = budget(epsilon=5.0)
    go(tmp_path, "a", path)
    with pytest.raises(InputError, match="same records"):
        go(tmp_path, "b", path, n=201)
    with pytest.raises(InputError, match="without privacy"):
        Settings(privacy=None, budget=str(path))
    with pytest.raises(InputError, match="adjacency"):
        reserve(
            path, Spending.of([Charge(PureRelease(epsilon=0.1), 1)], adjacency=Adjacency.ADD_REMOVE), run="", data=""
        )


def test_a_torn_reservation_was_not_made_and_a_changed_file_is_refused(tmp_path, budget):
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    good = path.read_bytes()
    path.write_bytes(good[:-10])
    assert read_budget(path).reservations == ()
    reserve(path, SPENDING, run="b", data="d")
    assert [each.run for each in read_budget(path).reservations] == ["b"]
    path.write_bytes(good.replace(b'"count":20', b'"count":10').replace(b",20]", b",10]"))
    with pytest.raises(LedgerError):
        read_budget(path)


def test_a_budget_is_never_written_over_and_is_its_owners_alone(tmp_path, budget):
    path = budget()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="does not exist"):
        budget()
    with pytest.raises(LedgerError):
        read_budget(tmp_path / "none")


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"delta": 1.0}, {"accountant": "moments"}, {"epsilon": "1"}])
def test_budgets_that_are_none_are_refused(bad):
    with pytest.raises(InputError):
        Budget(**{"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.REPLACE_ONE, **bad})
