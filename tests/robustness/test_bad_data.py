"""Bad data and bad numbers: a clear error, or a counted contribution of zero; never an unbounded one."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import dpsrm
from conftest import make_problem
from dpsrm.core.errors import Diverged, InputError
from dpsrm.data import Records
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, ahead, loader, loss_for, train

BASE = {"privacy": Privacy(epsilon=20.0, delta=1e-5, noise_multiplier=1.0), "seed": 2}


def go(tmp_path, data, *, module=None, loss=None, **changes):
    module = module or nn.Linear(5, 3)
    training = changes.pop("training", Training(batch=10, steps=5))
    chosen = Settings(**{**BASE, "training": training, **changes})
    return train(module, loss or loss_for(3), data, chosen, out=tmp_path / "run")


def records(n=100):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator), torch.randint(3, (n,), generator=generator)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_named(tmp_path, value):
    X, y = records()
    X[17, 3] = value
    with pytest.raises(InputError, match=r"row=17, column=3"):
        go(tmp_path, (X, y))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("label", [3, 99, -1, -100])
def test_labels_out_of_range_are_named_before_training(tmp_path, label):
    X, y = records()
    y[42] = label
    with pytest.raises(InputError, match=f"row=42, label={label}"):
        go(tmp_path, (X, y))
    assert not (tmp_path / "run").exists()


def test_a_third_label_for_a_module_of_two_classes_is_named(tmp_path):
    X, y = records()
    with pytest.raises(InputError, match="0 … 1"):
        go(tmp_path, (X, y), module=nn.Linear(5, 1), loss=loss_for(2))


def test_a_model_of_another_type_of_numbers_is_told_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"must take the records .*model\.float\(\); or, for float64, call"):
        go(tmp_path, records(), module=nn.Sequential(nn.Linear(5, 3)).double())


def test_a_loss_that_cannot_take_the_records_is_named_before_anything_is_charged(tmp_path):
    X, y = records()
    with pytest.raises(InputError, match="must take the records"):
        go(
            tmp_path,
            (X, y),
            module=nn.Linear(4, 3),
            loss=lambda o, t: nn.functional.cross_entropy(o, t, reduction="none"),
        )
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_records_without_features_are_refused(tmp_path):
    with pytest.raises(InputError, match="feature"):
        go(tmp_path, (torch.zeros(100, 0), records()[1]))


def test_constant_features_and_one_class_train(tmp_path):
    run = go(tmp_path, (torch.ones(100, 5), torch.zeros(100, dtype=torch.int64)))
    assert verify(run.folder.path).ok


def test_rows_of_different_lengths_are_refused(tmp_path):
    ragged = np.array([[1.0, 2.0], [3.0]], dtype=object)
    with pytest.raises(InputError):
        go(tmp_path, (ragged, np.array([0, 1])))

    class Ragged(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.zeros(5 + i % 2), 0

    with pytest.raises(InputError, match="collate"):
        go(tmp_path, Ragged())


@pytest.mark.parametrize("rate", [1e30, 1e38])
def test_an_exploding_training_stops_and_says_so(tmp_path, rate):
    """Every release before it was charged; no step is taken from numbers that are none."""
    training = Training(batch=10, steps=50, learning_rate=rate, regulariser=1e30, output="last")
    with pytest.raises(Diverged, match="smaller learning rate"):
        go(tmp_path, records(), training=training)
    facts = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert not facts.closed
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_example_whose_gradient_is_no_number_counts_as_zero(tmp_path):
    """A loss that gives NaN for some records: bounded, counted, and the model stays finite."""
    objective, make = make_problem("mlp")

    def loss(outputs, targets):
        return objective.loss(outputs, targets) * torch.where(outputs.sum(-1) > 0, torch.nan, 1.0)

    run = go(tmp_path, Records(*make(100)), module=objective.module, loss=loss)
    lines = (run.folder.private / "progress.jsonl").read_text().splitlines()
    assert max(json.loads(line)["private"]["nonfinite"] for line in lines) > 0
    assert all(torch.isfinite(p).all() for p in run.module.parameters())


def test_a_dataset_that_has_become_another_cannot_be_resumed(tmp_path):
    class Changing(Dataset):
        day = 1

        def __len__(self):
            return 60

        def __getitem__(self, i):
            return torch.full((5,), float(i)) + self.day, i % 3

    def stop(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    chosen = Settings(**BASE, training=Training(batch=10, steps=5), performance=Performance(checkpoint_steps=1))
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), loss_for(3), Changing(), chosen, out=tmp_path / "run", callbacks=[stop])
    Changing.day = 2
    with pytest.raises(dpsrm.ResumeError, match=r"data|module"):
        dpsrm.resume(tmp_path / "run", nn.Linear(5, 3), loss_for(3), Changing())


class Failing(Dataset):
    """Of its 40 records one cannot be read a second time, or has a label that torch's loss cannot take."""

    def __init__(self, how):
        self._how, self._reads = how, 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        self._reads += i == 20
        if self._reads > 1 and self._how == "unreadable":
            raise OSError("a file is gone")
        return torch.ones(3), 5 if i == 20 and self._how == "label" else i % 2


def own_loop(tmp_path, how, **more):
    """A run over them, in one's own loop."""
    chosen = {"batch_size": 4, "steps": 400, "epsilon": 1.0, "delta": 1e-5, "method": "sgd", "seed": 2}
    model, losses = nn.Sequential(nn.Linear(3, 2)), nn.CrossEntropyLoss(reduction="none")
    data = Failing(how) if isinstance(how, str) else how
    return dpsrm.make_private(model=model, losses=losses, data=data, out=tmp_path / "run", **chosen, **more)


def steps(run, count=400):
    """Make steps; the states before each of them."""
    states = []
    for batch in run.data_loader:
        states.append(run.state_dict())
        run.step(batch)
        if len(states) == count:
            break
    return states


def refused(run):
    with pytest.raises(InputError, match="the last step failed, perhaps because of a record"):
        run.finish()
    assert not list(run.folder.glob("model*"))


@pytest.mark.parametrize(("how", "error"), [("unreadable", OSError), ("label", InputError)])
def test_a_run_that_a_record_stopped_is_not_published(tmp_path, how, error):
    run, made = own_loop(tmp_path, how), []

    def loop():
        while True:
            for batch in run.data_loader:
                made.append(run.step(batch))

    with pytest.raises(error) as told:
        loop()
    assert made
    assert error is OSError or "do not publish it" in str(told.value)
    with pytest.raises(InputError, match="the last step failed"):
        run.finish()
    assert not (tmp_path / "run/certificate.json").exists()
    assert not list((tmp_path / "run").glob("model*"))


def test_a_stop_is_not_forgotten_by_going_back_nor_by_another_process(tmp_path):
    """Not where it stopped, nor at a release before it, nor though one before it was made again."""
    run = own_loop(tmp_path, "label")
    start = run.state_dict()
    with pytest.raises(InputError, match="do not publish it"):
        steps(run)
    made = run.steps_made
    assert made > 2
    for state in (run.state_dict(), start):
        run.load_state_dict(state)
        refused(run)
    steps(run, 1)
    refused(run)
    run._run.close()
    again = own_loop(tmp_path, "label", resume=True)
    refused(again)
    with pytest.raises(InputError, match="do not publish it"):
        steps(again)
    assert again.steps_made == made
    refused(again)


@pytest.mark.parametrize("another", [False, True], ids=["goes on", "resumed"])
def test_a_stop_is_over_when_its_release_was_made(tmp_path, another):
    run = own_loop(tmp_path, "unreadable")
    with pytest.raises(OSError, match="a file is gone"):
        steps(run)
    made = run.steps_made
    assert made > 0
    if another:
        run._run.close()
        run = own_loop(tmp_path, "never", resume=True)
        refused(run)
        steps(run, made)
    else:
        run._run.prepared.records.dataset._how = "never"
    refused(run)
    steps(run, 1)
    assert run.steps_made == made + 1
    assert verify(run.finish().folder.path).ok


def test_train_remembers_a_stop_too(tmp_path, monkeypatch):
    """A callback of the run that goes on cannot end it where a record on disk did, nor before."""
    inputs, targets = records()
    np.save(tmp_path / "x.npy", inputs.numpy())
    data = np.load(tmp_path / "x.npy", mmap_mode="r"), targets.numpy()
    reads, real = [], ahead.read

    def read(*what):
        reads.append(what)
        if len(reads) == 3:
            raise OSError("a file is gone")
        return real(*what)

    monkeypatch.setattr(ahead, "read", read)
    with pytest.raises(OSError, match="a file is gone"):
        go(tmp_path, data)
    for last in (1, 2):
        with pytest.raises(InputError, match=r"the last step failed.* release=2, next="):
            dpsrm.resume(tmp_path / "run", nn.Linear(5, 3), loss_for(3), data, callbacks=[stop_after(last)])
    run = dpsrm.resume(tmp_path / "run", nn.Linear(5, 3), loss_for(3), data, callbacks=[stop_after(3)])
    assert verify(run.folder.path).ok


class Panic(BaseException):
    """As compiled libraries raise it (pyo3's PanicException): no Exception."""


NO_EXCEPTIONS = [Panic, SystemExit, KeyboardInterrupt, GeneratorExit]


@pytest.mark.parametrize("where", ["dataset", "collate", "loss"])
@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_what_is_no_exception_stops_a_run_too(tmp_path, kind, where):
    """Nobody can tell whether a record or the user wanted the run to end; noted on disk, whoever goes on."""
    armed = []

    def fails(at, value):
        if armed == [at]:
            raise kind("unwrap on a None value")
        return value

    class Fragile(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return fails("dataset", (torch.ones(3), i % 2))

    def losses(model, batch):
        return fails("loss", nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"))

    def go_on(**more):
        collate = lambda rows: fails("collate", torch.utils.data.default_collate(rows))  # noqa: E731
        like = torch.utils.data.DataLoader(Fragile(), batch_size=4, collate_fn=collate)
        chosen = {"steps": 9, "epsilon": 1.0, "delta": 1e-5, "method": "sgd", "seed": 2, "out": tmp_path / "run"}
        return dpsrm.make_private(model=nn.Linear(3, 2), losses=losses, data_loader=like, **chosen, **more)

    run = go_on()
    steps(run, 3)
    armed.append(where)
    with pytest.raises(kind), run:
        steps(run)
    assert run.steps_made == 3
    refused(run)
    armed.clear()
    run = go_on(resume=True)
    refused(run)
    steps(run, 4)
    assert verify(run.finish().folder.path).ok


def test_a_batch_that_its_device_has_no_room_for_stops_a_run(tmp_path, monkeypatch):
    """It could be read, and not be moved to where the model is: so long may one record be."""
    run = own_loop(tmp_path, "never")
    steps(run, 2)

    def full(batch, device):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(loader, "on_device", full)
        with pytest.raises(torch.OutOfMemoryError):
            steps(run)
    refused(run)
    steps(run, 1)
    assert verify(run.finish().folder.path).ok


@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_a_panic_while_reading_ahead_is_noted(tmp_path, monkeypatch, kind):
    inputs, targets = records()
    np.save(tmp_path / "x.npy", inputs.numpy())
    data, reads, real = (np.load(tmp_path / "x.npy", mmap_mode="r"), targets.numpy()), [], ahead.read

    def read(*what):
        reads.append(what)
        if len(reads) == 3:
            raise kind
        return real(*what)

    monkeypatch.setattr(ahead, "read", read)
    with pytest.raises(kind):
        go(tmp_path, data)
    assert marks(tmp_path) == ["failed 00000000000000000002"]


def marks(tmp_path):
    lines = (tmp_path / "run/private/sums.log").read_text().splitlines()
    return [line for line in lines if line.startswith(("failed", "made"))]


def test_an_interrupt_inside_a_step_says_how_to_go_on_and_asks_for_that_step(tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return loss_for(3)(outputs, targets)

    with pytest.raises(KeyboardInterrupt) as told:
        go(tmp_path, records(), module=nn.Sequential(nn.Linear(5, 3)), loss=loss, training=Training(batch=10, steps=99))
    assert any("dpsrm train --resume" in note for note in told.value.__notes__)
    (mark,) = marks(tmp_path)
    with pytest.raises(InputError, match=f"the last step failed.* release={int(mark.split()[1])}, next=1"):
        dpsrm.resume(
            tmp_path / "run", nn.Sequential(nn.Linear(5, 3)), loss_for(3), records(), callbacks=[stop_after(1)]
        )
    run = dpsrm.resume(tmp_path / "run", nn.Sequential(nn.Linear(5, 3)), loss_for(3), records())
    assert verify(run.folder.path).ok


def test_an_interrupt_outside_of_a_step_is_the_users(tmp_path):
    """Of a callback; or a loop that is left, which closes its loader: the run may end there."""

    def stop(progress):
        raise KeyboardInterrupt

    chosen = Settings(**BASE, training=Training(batch=10, steps=5))
    with pytest.raises(KeyboardInterrupt):
        train(nn.Linear(5, 3), loss_for(3), records(), chosen, out=tmp_path / "run", callbacks=[stop])
    assert marks(tmp_path) == []
    run = own_loop(tmp_path / "own", "never")
    batches = iter(run.data_loader)
    run.step(next(batches))
    next(batches)
    batches.close()
    assert marks(tmp_path / "own") == []
    assert verify(run.finish().folder.path).ok


def stop_after(step):
    return lambda progress: progress.stop() if progress.step == step else None


def test_a_run_that_the_user_stops_is_published(tmp_path):
    """Also after an error that no record caused."""
    run = own_loop(tmp_path, "never")
    for batch in run.data_loader:
        run.step(batch)
        with pytest.raises(InputError, match="the batch that the loader drew last"):
            run.step(batch)
        break
    assert verify(run.finish().folder.path).ok
