"""A shared budget: composed, kept, never taken twice, never given back, and never younger than its runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpsrm
from conftest import make_problem
from dpsrm.accounting.budget import Budget
from dpsrm.accounting.budget_file import create_budget, read_budget, reserve
from dpsrm.accounting.calibrate import accountant
from dpsrm.accounting.position import IN_RUN, beside
from dpsrm.core.errors import BudgetExceeded, InputError, LedgerError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, PureRelease, Sampling, Scheme, Spending
from dpsrm.data import Records, SparseRecords
from dpsrm.methods import Agd
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, train

EVENT = GaussianRelease(noise_multiplier=2.0, sampling=Sampling(scheme=Scheme.WOR, population=1000, batch=50))
SPENDING = Spending.of([Charge(EVENT, 20)], adjacency=Adjacency.REPLACE_ONE)

TINY = Spending.of([Charge(PureRelease(epsilon=1e-6), 1)], adjacency=Adjacency.REPLACE_ONE)


@pytest.fixture
def budget(tmp_path):
    def make(epsilon=2.0, adjacency=Adjacency.REPLACE_ONE, **more):
        (tmp_path / "safe").mkdir()
        path = tmp_path / "safe" / "budget"
        create_budget(path, Budget(epsilon=epsilon, delta=1e-5, adjacency=adjacency, **more))
        return path

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
    path = budget(epsilon=1.6, accountant="pld")
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


def test_a_run_that_was_too_late_leaves_no_folder(tmp_path, budget, monkeypatch):
    """Refused after its folder was made, because another run reserved in between."""
    path = budget(epsilon=1.2)
    monkeypatch.setattr(Budget, "need_room", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules["dpsrm.training.train"], "reserve", too_late)
    with pytest.raises(BudgetExceeded):
        go(tmp_path, "a", path)
    assert not (tmp_path / "a").exists()


def too_late(*_, **__):
    raise BudgetExceeded("another was faster")


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
        train(objective.module, objective.loss, data, settings, out=tmp_path / "a", callbacks=[stop])
    spent = read_budget(path).spent
    assert 0.9 < spent <= 1.2
    dpsrm.resume(tmp_path / "a", objective.module, objective.loss, data)
    assert read_budget(path).spent == spent
    assert len(read_budget(path).reservations) == 1


def test_an_adaptive_run_reserves_all_it_may_spend(tmp_path, budget):
    path = budget(epsilon=1.2, accountant="pld")
    objective, records = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5), method=Agd(), training=Training(steps=5), budget=str(path)
    )
    run = train(objective.module, objective.loss, Records(*records(200)), settings, out=tmp_path / "agd")
    found = read_budget(path)
    assert found.spending == run.plan.reserved
    assert found.spent >= run.epsilon
    assert found.spent == pytest.approx(1.0, rel=2e-3)


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


def test_sparse_and_dense_forms_are_the_same_records(tmp_path, budget):
    path = budget()
    go(tmp_path, "dense", path, epsilon=0.5)
    objective, records = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=0.5, delta=1e-5), training=Training(batch=20, steps=5), budget=str(path)
    )
    same, other = SparseRecords.of(Records(*records(200))), SparseRecords.of(Records(*records(199)))
    train(objective.module, objective.loss, same, settings, out=tmp_path / "sparse")
    with pytest.raises(InputError, match="same data"):
        train(objective.module, objective.loss, other, settings, out=tmp_path / "other")


def test_a_changed_file_is_refused(budget):
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    path.write_bytes(path.read_bytes().replace(b",20]", b",10]"))
    with pytest.raises(LedgerError):
        read_budget(path)


def test_a_lost_line_end_refunds_nothing(tmp_path, budget):
    """Attack 7: the reservation counted 0 without its newline, and a second run started."""
    path = budget(epsilon=1.2)
    go(tmp_path, "a", path)
    spent, good = read_budget(path).spent, path.read_bytes()
    path.write_bytes(good[:-1])
    assert read_budget(path).spent == spent
    with pytest.raises(BudgetExceeded, match="not started"):
        go(tmp_path, "b", path)
    reserve(path, TINY, run="c", data=read_budget(path).reservations[0].data)
    assert path.read_bytes().startswith(good)
    assert [each.run for each in read_budget(path).reservations] == [str(tmp_path / "a"), "c"]


def test_a_file_cut_short_anywhere_is_never_worth_more(budget):
    """Also where the cut leaves a file that is whole, or a torn line that looks like one never completed."""
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    reserve(path, SPENDING, run="b", data="d")
    spent, good = read_budget(path).spent, path.read_bytes()
    for size in range(0, len(good) - 1, 7):
        path.write_bytes(good[:size])
        for ask in (read_budget, lambda path: reserve(path, TINY, run="c", data="d")):
            with pytest.raises(LedgerError):
                ask(path)
        assert path.read_bytes() == good[:size], "what was found is left for its owner to look at"
    path.write_bytes(good)
    assert read_budget(path).spent == spent


def test_a_torn_reservation_was_never_handed_out(budget):
    """Killed while it wrote: FILE.head does not count it, so no run was told that it may start."""
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    good = path.read_bytes()
    path.write_bytes(good + b'{"body":{"charges":[[{"kind":"pure","eps')
    assert [each.run for each in read_budget(path).reservations] == ["a"]
    reserve(path, SPENDING, run="b", data="d")
    assert path.read_bytes().startswith(good)
    assert [each.run for each in read_budget(path).reservations] == ["a", "b"]


def test_a_reservation_whose_run_was_killed_before_it_was_handed_out_counts(budget):
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    before = beside(path).read_bytes()
    reserve(path, SPENDING, run="b", data="d")
    beside(path).write_bytes(before)
    assert [each.run for each in read_budget(path).reservations] == ["a", "b"]


def older(path, *, both):
    """Remember the budget as it is (with what stands beside it); the result puts it back."""
    saved = [(each, each.read_bytes()) for each in ([path, beside(path)] if both else [path])]

    def put_back():
        for each, content in saved:
            each.write_bytes(content)

    return put_back


@pytest.mark.parametrize("both", [False, True], ids=["the file", "the file and what stands beside it"])
@pytest.mark.parametrize("first", [False, True], ids=["from before all runs", "from between two runs"])
def test_an_older_copy_is_noticed(tmp_path, budget, both, first):
    """Attack 7: .8998 spent became 0. With FILE.head put back too, the runs' own records still tell."""
    path = budget(epsilon=3.0)
    if first:
        go(tmp_path, "a", path)
    put_back = older(path, both=both)
    go(tmp_path, "b", path)
    assert verify(tmp_path / "b").ok
    put_back()
    with pytest.raises(LedgerError, match="older than what was reserved"):
        go(tmp_path, "c", path)
    assert not (tmp_path / "c").exists()
    assert any("older" in problem for problem in verify(tmp_path / "b").problems)
    if first or not both:
        with pytest.raises(LedgerError, match="older than what was reserved"):
            read_budget(path)


def test_an_older_copy_that_went_on_is_noticed(tmp_path, budget):
    """It is as long again, but with other lines."""
    path = budget(epsilon=3.0)
    put_back = older(path, both=True)
    go(tmp_path, "a", path)
    put_back()
    go(tmp_path / "elsewhere", "b", path)
    with pytest.raises(LedgerError, match="older than what was reserved"):
        go(tmp_path, "c", path)


def test_a_fresh_budget_in_the_place_of_one_that_was_spent_is_noticed(tmp_path, budget):
    """Seventh attack: .864 of 1 was spent; deleted and made anew, the same file gave another run .864."""
    path = budget(epsilon=1.0)
    go(tmp_path, "a", path, epsilon=0.8)
    for each in (path, beside(path)):
        each.unlink()
    assert verify(tmp_path / "a").ok
    create_budget(path, Budget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    with pytest.raises(LedgerError, match="another budget than the one that was there"):
        go(tmp_path, "b", path, epsilon=0.8)
    assert not (tmp_path / "b").exists()
    assert any("another budget" in problem for problem in verify(tmp_path / "a").problems)
    with pytest.raises(LedgerError, match="another budget"):
        reserve(path, TINY, run=str(tmp_path / "c"), data="d")
    other = path.with_name("other")
    create_budget(other, Budget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    go(tmp_path, "c", other, epsilon=0.8)


@pytest.mark.parametrize("name", ["/" + 5000 * "x", "\0", "\ud800"])
def test_a_place_that_cannot_be_is_out_of_reach(tmp_path, budget, name):
    """A run folder may come from anywhere; `verify` stopped in the system's words."""
    go(tmp_path, "a", budget())
    at = tmp_path / "a" / IN_RUN
    at.write_text(json.dumps({**json.loads(at.read_text()), "file": name}))
    assert verify(tmp_path / "a").ok


def test_an_older_copy_is_noticed_when_a_run_is_resumed(tmp_path, budget):
    path = budget()
    put_back = older(path, both=True)

    def stop(progress):
        if progress.step == 7:
            raise KeyboardInterrupt

    objective, records = make_problem("logistic")
    arguments = objective.module, objective.loss, Records(*records(200))
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(steps=9), budget=str(path))
    with pytest.raises(KeyboardInterrupt):
        train(*arguments, settings, out=tmp_path / "a", callbacks=[stop])
    newest = older(path, both=True)
    put_back()
    with pytest.raises(LedgerError, match="older"):
        dpsrm.resume(tmp_path / "a", *arguments)
    newest()
    dpsrm.resume(tmp_path / "a", *arguments)


def test_what_stands_beside_it_belongs_to_it(budget):
    path = budget()
    saved = beside(path).read_bytes()
    beside(path).unlink()
    for ask in (read_budget, lambda path: reserve(path, TINY, run="c", data="d")):
        with pytest.raises(LedgerError, match="put it back"):
            ask(path)
    beside(path).write_bytes(saved.replace(b'"budget": "', b'"budget": "0'))
    with pytest.raises(LedgerError, match="another budget"):
        read_budget(path)


def test_a_budget_can_be_moved_with_what_stands_beside_it(tmp_path, budget):
    path = budget()
    reserve(path, SPENDING, run="a", data="d")
    moved = shutil.move(path.parent, tmp_path / "moved") / path.name
    reserve(moved, SPENDING, run="b", data="d")
    assert len(read_budget(moved).reservations) == 2


def test_runs_of_a_budget_are_composed_at_one_order(budget):
    """Attack 9: the least over all orders, taken anew for each sequence, took this run; an order fixed before does not.

    Which order says least depends on the releases (here a low one: q = .01, s = .5), and who chooses the next run by
    looking at the last one's result chooses the order by it too.
    """
    path = budget(epsilon=2.0)
    sampling = Sampling(scheme=Scheme.POISSON, population=10_000, batch=100)
    charge = Charge(GaussianRelease(noise_multiplier=0.5, sampling=sampling), 100)
    spending = Spending.of([charge], adjacency=Adjacency.REPLACE_ONE)
    assert accountant("rdp").epsilon(spending, 1e-5).epsilon < 2.0 < read_budget(path).cost(spending).epsilon
    with pytest.raises(BudgetExceeded, match="order"):
        reserve(path, spending, run="a", data="d")


def test_a_budget_is_never_written_over_and_is_its_owners_alone(tmp_path, budget):
    path = budget()
    assert path.stat().st_mode & 0o777 == 0o600
    assert beside(path).stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="does not exist"):
        create_budget(path, Budget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    path.unlink()
    with pytest.raises(InputError, match="put it back"):
        create_budget(path, Budget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    with pytest.raises(LedgerError):
        read_budget(tmp_path / "none")


@pytest.mark.parametrize(
    "bad",
    [{"epsilon": 0.0}, {"epsilon": 1e-4}, {"delta": 1.0}, {"accountant": "rdp9"}, {"epsilon": "1"}, {"order": 1.05}],
)
def test_budgets_that_are_none_are_refused(bad):
    with pytest.raises(InputError):
        Budget(**{"epsilon": 1.0, "delta": 1e-5, "adjacency": Adjacency.REPLACE_ONE, **bad})
