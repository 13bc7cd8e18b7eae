"""The person as the unit of privacy: how far a run may move, what it says, and that for k = 1 it is a run by record."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from conftest import make_problem
from dpsrm.accounting.budget import Budget
from dpsrm.accounting.budget_file import create_budget
from dpsrm.core.errors import DpsrmError, InputError, ResumeError
from dpsrm.core.events import Adjacency
from dpsrm.core.secret import Streams
from dpsrm.core.tree import Bundles
from dpsrm.data import Records, UnitRecords, Units
from dpsrm.methods import METHODS, Agd, Choice, Disk, Gd, Rrpsgd, Sgd, Spider, Srm, Storm
from dpsrm.runs import verify
from dpsrm.runs.book import MemoryBook
from dpsrm.runs.ledger import read_ledger
from dpsrm.sampling import draw
from dpsrm.training import Performance, Privacy, Settings, Training, make_private, resume, train
from dpsrm.training.prepare import prepare
from dpsrm.training.step import Step

PERSONS, K = 30, 4
PRIVACY = Privacy(epsilon=20.0, delta=1e-5, noise_multiplier=4.0, accountant="rdp", rows_per_unit=K)
METHODS_TRAINED = {
    "sgd": (Sgd(), {"batch": 8}),
    "srm": (Srm(gamma=0.3), {"batch": 8, "first_batch": 15}),
    "srm-relative": (Srm(gamma=0.3, relative=2.0), {"batch": 8}),
    "srm-joint": (Srm(gamma=0.3, joint_norm=0.6), {"batch": 8}),
    "srm-auto": (Srm(gamma=0.3, clip="auto"), {"batch": 8}),
    "disk": (Disk(), {"batch": 8}),
    "spider": (Spider(period=3), {"batch": 8}),
    "gd": (Gd(), {}),
    "rrpsgd": (Rrpsgd(), {"steps": 60}),
    "agd": (Agd(), {}),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def panel(kind="logistic", *, persons=PERSONS, most=7, seed=0):
    """A module and its loss, rows of persons with 1 … most rows in any order, and whose they are."""
    objective, records = make_problem(kind)
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(persons), rng.integers(1, most + 1, persons)))
    return objective.module, objective.loss, records(len(ids)), ids


def replaced(rows, ids, who, *, scale, count):
    """The same rows, but person `who` has `count` other rows; everybody else, and the order, stay."""
    inputs, targets = rows
    first = int(np.flatnonzero(ids == who)[0])
    others = np.flatnonzero(ids != who)
    at = np.sort(np.concatenate([others, [first]]))
    at = np.concatenate([at, np.full(count - 1, first)])
    inputs, targets, ids = inputs[at].clone(), targets[at].clone(), ids[at]
    mine = np.flatnonzero(ids == who)
    inputs[mine] = scale * torch.ones_like(inputs[mine])
    targets[mine] = 1 - targets[mine].clamp(max=1)
    return (inputs, targets), ids


def _promise(method, *, rows_per_unit):
    """A noise that needs no calibration, but for the method that prices its releases itself."""
    if method == "agd":
        return Privacy(epsilon=20.0, delta=1e-5, rows_per_unit=rows_per_unit, accountant="rdp")
    return replace(PRIVACY, epsilon=1000.0, rows_per_unit=rows_per_unit)


def settings(method="srm", *, privacy=PRIVACY, engine="auto", **changes):
    chosen, training = METHODS_TRAINED[method]
    return Settings(
        privacy=privacy,
        method=chosen,
        training=Training(**{"steps": 6, "learning_rate": 0.3, "output": "last", **training, **changes}),
        performance=Performance(engine=engine, checkpoint_steps=2),
        seed=3,
    )


def step_of(module, loss, rows, ids, asked):
    """The step of a run that could begin, charged in memory."""
    prepared = prepare(module, loss, Records(*rows), asked, Streams.choose(asked.seed), unit=ids)
    return prepared, Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))


CHANGES = {"more": (1.0, 9), "fewer": (-3.0, 1), "extreme": (1e8, 5), "tiny": (1e-30, 2)}


@pytest.mark.parametrize("method", METHODS_TRAINED)
@pytest.mark.parametrize("engine", ["linear", "ghost", "functional", "loop"])
def test_replacing_a_person_moves_every_release_by_at_most_its_sensitivity(method, engine):
    """The walk on one dataset asks; both datasets answer, with the same draws and the same randomness."""
    module, loss, rows, ids = panel("logistic" if engine == "linear" else "mlp")
    asked = settings(method, engine=engine, privacy=_promise(method, rows_per_unit=K))
    ours, step = step_of(module, loss, rows, ids, asked)
    neighbours = [
        step_of(module, loss, *replaced(rows, ids, 5, scale=scale, count=count), asked)
        for scale, count in CHANGES.values()
    ]
    seen, five = 0, list(dict.fromkeys(ids.tolist())).index(5)
    while not step.done and step.airlock.releases < (60 if method == "rrpsgd" else 6):
        ask, release = ours.walk.ask(), step.airlock.releases
        ours.streams.seek(release)
        people = draw(ours.plan.sampling(ask.batch), ours.streams.sampling)
        seen += five in people
        found = [_answer(s.sums, ask, p.pick(people, release), release) for p, s in [(ours, step), *neighbours]]
        for other in found[1:]:
            _need_near(found[0], other)
        step()
    assert seen > 0, "the person was never drawn: the test would show nothing"


def _answer(sums, ask, which, release):
    if isinstance(ask, Choice):
        return sums.scores(ask, which, release=release, batch=None)
    return sums.total(ask.query, which, release=release, batch=None)


def _need_near(one, other):
    """Sums no further apart than the sensitivity; scores moving apart by no more than the spread."""
    if isinstance(one.secret, tuple):
        moved = [a - b for a, b in zip(one.secret, other.secret, strict=True)]
        assert max(moved) - min(moved) <= one.spread(Adjacency.REPLACE_ONE)
    else:
        assert float((one.secret - other.secret).norm()) <= one.sensitivity(Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("engine", ["linear", "ghost"])
def test_others_pick_the_same_rows_whatever_one_person_has(adjacency, engine):
    module, loss, rows, ids = panel("logistic" if engine == "linear" else "mlp")
    asked = settings("sgd", engine=engine, privacy=replace(PRIVACY, adjacency=Adjacency(adjacency), rows_per_unit=2))
    ours, one = step_of(module, loss, rows, ids, asked)
    theirs, other = step_of(module, loss, *replaced(rows, ids, 5, scale=2.0, count=9), asked)
    assert ours.steady == theirs.steady == (adjacency == "replace-one")
    five = list(dict.fromkeys(ids.tolist())).index(5)
    people = np.array([3, five, 11, 17]) if five not in (3, 11, 17) else np.array([2, five, 10, 16])
    for release in range(4):
        picked = [p.pick(people, release) for p in (ours, theirs)]
        values = [p.records.records.take(w.rows)[0] for p, w in zip((ours, theirs), picked, strict=True)]
        for b in (0, 2, 3):
            mine = [v[w.starts[b] : w.starts[b + 1]] for v, w in zip(values, picked, strict=True)]
            assert torch.equal(*mine)
        query, rest = ours.walk.ask().query, np.delete(people, 1)
        sums = [
            s.sums.total(query, p.pick(rest, release), release=release, batch=None)
            for p, s in ((ours, one), (theirs, other))
        ]
        assert torch.equal(sums[0].secret, sums[1].secret), "not even the last bit of the others may tell of one"


def published(run, names=("model.safetensors",)):
    return {name: (run / name).read_bytes() for name in names}


@pytest.mark.parametrize("engine", ["auto", "ghost", "functional", "loop"])
@pytest.mark.parametrize("method", ["srm", "sgd", "agd"])
def test_with_one_row_per_person_the_run_is_the_record_level_run_to_the_bit(method, engine, tmp_path):
    kind = "logistic" if engine == "auto" else "mlp"
    n = 12 if (method, engine) == ("agd", "loop") else 60
    for name, unit in (("records", None), ("units", [f"p{i}" for i in range(n)])):
        objective, records = make_problem(kind)
        promise = _promise(method, rows_per_unit=None if unit is None else 1)
        asked = settings(method, engine=engine, privacy=promise)
        train(objective.module, objective.loss, Records(*records(n)), asked, out=tmp_path / name, unit=unit)
    assert published(tmp_path / "records") == published(tmp_path / "units")
    ours, theirs = (read_ledger(tmp_path / name / "ledger.jsonl") for name in ("units", "records"))
    assert ours.spending == theirs.spending


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("method", ["srm", "sgd", "agd"])
def test_interrupted_and_resumed_it_is_the_run_it_would_have_been(kind, method, tmp_path):
    class Interrupted(Exception):
        """Stands for whatever ends a process."""

    def stop(progress):
        if progress.step == 3:
            raise Interrupted

    promise = _promise(method, rows_per_unit=2)
    module, loss, rows, ids = panel(kind)
    asked = settings(method, privacy=promise)
    train(module, loss, rows, asked, out=tmp_path / "whole", unit=ids)
    module, loss, rows, ids = panel(kind)
    with pytest.raises(Interrupted):
        train(module, loss, rows, asked, out=tmp_path / "run", unit=ids, callbacks=[stop])
    with pytest.raises(InputError, match="whose each record is"):
        resume(tmp_path / "run", module, loss, rows)
    with pytest.raises(ResumeError, match="data must be the same"):
        resume(tmp_path / "run", module, loss, rows, unit=np.where(ids == 1, 2, np.where(ids == 2, 1, ids)))
    resume(tmp_path / "run", module, loss, rows, unit=ids)
    names = ("model.safetensors", "ledger.jsonl", "certificate.md", "config.toml")
    assert published(tmp_path / "run", names) == published(tmp_path / "whole", names)


def test_rows_are_picked_anew_for_every_release_and_once_for_all_points(monkeypatch, tmp_path):
    seen = []
    real = UnitRecords.batch

    def spy(self, picked):
        seen.append(picked.rows.tolist())
        return real(self, picked)

    module, loss, rows, ids = panel("mlp", most=9)
    monkeypatch.setattr(UnitRecords, "batch", spy)
    asked = settings(
        "srm", privacy=replace(PRIVACY, rows_per_unit=2, sampling="wor"), batch=PERSONS, first_batch=PERSONS
    )
    train(
        module,
        loss,
        rows,
        replace(asked, performance=Performance(checkpoint_seconds=0)),
        out=tmp_path / "run",
        unit=ids,
    )
    drawn = [rows for rows in seen if len(rows) > 10]
    assert len(drawn) == 6, "one reading per release, whatever the number of points"
    assert len({tuple(rows) for rows in drawn}) == 6
    assert all(len(set(rows)) == len(rows) for rows in drawn)


def test_everything_that_is_published_names_the_unit(tmp_path):
    module, loss, rows, ids = panel()
    promise = replace(PRIVACY, unit="patient", rows_per_unit=3)
    run = train(module, loss, rows, settings("srm", privacy=promise), out=tmp_path / "run", unit=[f"p{i}" for i in ids])
    unit = read_ledger(tmp_path / "run" / "ledger.jsonl").header.unit
    assert (unit.name, unit.count, unit.rows) == ("patient", PERSONS, 3)
    text = (tmp_path / "run" / "certificate.md").read_text()
    assert "if one unit (all rows with the same patient) is replaced by any other, with any rows, more or fewer" in text
    assert f"N = {PERSONS}" in text
    assert "k = 3" in text
    assert f"sum over 15 of {PERSONS} units" in text
    found = verify(run.folder.path)
    assert found.ok
    assert str(found.facts.header.unit) == "30 units by patient, at most 3 rows of each in a release"
    everything = b"".join(path.read_bytes() for path in run.folder.path.iterdir() if path.is_file())
    assert str(len(ids)).encode() not in everything.replace(b"\n", b" ").split(), "how many rows there are is private"


def test_a_ledger_that_speaks_of_another_number_of_units_is_noticed():
    from dpsrm.core.events import Charge, GaussianRelease, Sampling, Spending
    from dpsrm.runs.ledger import ProtectedUnit

    event = GaussianRelease(noise_multiplier=1.0, sampling=Sampling(scheme="wor", population=20, batch=2))
    spending = Spending.of([Charge(event, 1)], adjacency=Adjacency.REPLACE_ONE)
    assert ProtectedUnit(name="id", count=20, rows=1).problems(spending) == []
    assert ProtectedUnit(name="id", count=30, rows=1).problems(spending) == [
        "a release from 20 units, but the header says 30"
    ]
    for bad in ({"count": 0}, {"rows": True}, {"name": ""}):
        with pytest.raises(DpsrmError):
            ProtectedUnit(**{"name": "id", "count": 2, "rows": 1, **bad})


def test_settings_that_promise_a_unit_without_ids_are_refused(tmp_path):
    module, loss, rows, ids = panel()
    for promise in (replace(PRIVACY, unit="patient"), PRIVACY):
        with pytest.raises(InputError, match="whose each record is"):
            train(module, loss, rows, settings(privacy=promise), out=tmp_path / "run")
    with pytest.raises(InputError, match="private training only"):
        train(module, loss, rows, settings(privacy=None), out=tmp_path / "run", unit=ids)
    with pytest.raises(InputError, match="one id per record"):
        train(module, loss, rows, settings(), out=tmp_path / "run", unit=ids[1:])
    assert not (tmp_path / "run").exists()


def test_a_budget_is_for_one_unit(tmp_path):
    budget = tmp_path / "b.budget"
    create_budget(budget, Budget(epsilon=50.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    module, loss, rows, ids = panel()
    asked = replace(settings("sgd", privacy=replace(PRIVACY, noise_multiplier=8.0)), budget=str(budget))
    train(module, loss, rows, asked, out=tmp_path / "one", unit=ids)
    other_k = replace(asked, privacy=replace(asked.privacy, rows_per_unit=2))
    train(module, loss, rows, other_k, out=tmp_path / "two", unit=ids)
    alone = replace(asked, privacy=replace(asked.privacy, rows_per_unit=None))
    with pytest.raises(InputError, match="must protect the same unit"):
        train(module, loss, rows, alone, out=tmp_path / "three")
    assert json.loads(budget.read_text().splitlines()[1])["body"]["unit"] == "id"


class Counted(Dataset):
    """A dataset that counts how often it is read."""

    def __init__(self, rows):
        self.rows, self.reads = rows, 0

    def __len__(self):
        return len(self.rows[0])

    def __getitem__(self, i):
        self.reads += 1
        return tuple(tensor[i] for tensor in self.rows)


def test_a_person_with_a_hundred_thousand_rows_is_read_k_rows_at_a_time():
    objective, records = make_problem("logistic")
    data = Counted(records(100_000 + 9))
    ids = np.r_[np.zeros(100_000, dtype=int), np.arange(1, 10)]
    asked = replace(settings("sgd", batch=5), performance=Performance(checkpoint_seconds=0))
    prepared = prepare(objective.module, objective.loss, data, asked, Streams.choose(3), unit=ids)
    data.reads = 0
    step = Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))
    step()
    assert 0 < data.reads <= 10 * K


@pytest.mark.parametrize("workers", [0, 2])
def test_ones_own_loop_over_persons(workers, tmp_path):
    def private(out, *, again=False, rate=0.1):
        module, _, rows, ids = panel("mlp")
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        loader = DataLoader(TensorDataset(*rows), batch_size=8, num_workers=workers)
        losses = nn.CrossEntropyLoss(reduction="none")
        options = {"epsilon": 20.0, "delta": 1e-5, "epochs": 2, "method": "srm", "unit": ids, "rows_per_unit": 3}
        checkpoints = Performance(checkpoint_steps=1)
        return make_private(
            model=module, losses=losses, optimizer=optimizer, data_loader=loader, out=out, seed=5, resume=again,
            performance=checkpoints, **options,
        )  # fmt: skip

    with private(tmp_path / "whole") as whole:
        for _ in range(2):
            for batch in whole.data_loader:
                assert isinstance(batch, Bundles)
                assert batch.counts.shape[1] == 3
                whole.step(batch)
        expected = whole.finish()
    with private(tmp_path / "run") as run:
        for _, batch in zip(range(2), run.data_loader, strict=False):
            run.step(batch)
    with private(tmp_path / "run", again=True) as run:
        while not run.done:
            for batch in run.data_loader:
                run.step(batch)
        run.finish()
    assert published(tmp_path / "run") == published(expected.folder.path)
    assert verify(tmp_path / "run").ok


def test_every_private_method_was_tried():
    tried = {type(method) for method, _ in METHODS_TRAINED.values()}
    assert {kind for kind in METHODS.values() if kind().private} - {Storm} <= tried


def test_persons_are_taken_by_their_first_rows_for_looking_at():
    rows = Records(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    people = UnitRecords(rows, Units.of(["b", "a", "b", "b", "c", "a"]), 2)
    batch = people.take(np.array([2, 0]))
    assert batch.rows[1].tolist() == [[4, 4], [0, 2]]
    assert batch.counts.tolist() == [[1, 0], [1, 1]]
    assert people.take(np.array([], dtype=int)).counts.shape == (0, 2)
