"""`make_private`: one's own loop is the same run as `train`, refuses what was not drawn, stops and resumes honestly."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dpsrm import InputError, Privacy, ResumeError, Settings, Training
from dpsrm.gradients import multiclass_loss
from dpsrm.methods import Agd, Disk, Gd, Sgd, Srm
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, make_private, train

METHODS = {"srm": Srm(max_diff_norm=0.3), "sgd": Sgd(momentum=0.5), "disk": Disk(), "gd": Gd()}
N, B = 120, 12
PROMISE = {"epsilon": 30.0, "delta": 1e-4, "noise_multiplier": 1.5, "accountant": "rdp"}


def records():
    stream = torch.Generator().manual_seed(3)
    inputs = torch.randn(N, 6, generator=stream)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 3))


def losses(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def private(out, *, name="srm", model=None, optimizer=None, steps=11, loader=None, **changes):
    model = model or network()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.4)
    loader = loader or DataLoader(TensorDataset(*records()), batch_size=B, shuffle=True)
    settings = {"losses": losses, "method": METHODS[name], "steps": steps, "seed": 7, **PROMISE, **changes}
    return make_private(model=model, optimizer=optimizer, data_loader=loader, out=out, **settings)


def go(run, steps=None, after=lambda: None):
    """A loop of one's own: `steps` steps, or all."""
    for _ in range(100):
        if run.done:
            return
        for batch in run.data_loader:
            run.step(batch)
            after()
            steps = None if steps is None else steps - 1
            if steps == 0:
                return


def charges(folder):
    """The ledger's lines without the closing one, which names the digests of config and certificate."""
    return (folder / "ledger.jsonl").read_text().splitlines()[:-1]


@pytest.mark.parametrize("sampling", ["wor", "poisson"])
@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_run_that_train_makes(tmp_path, name, sampling):
    run = private(tmp_path / "own", name=name, sampling=sampling, output="tail")
    go(run)
    mine = run.finish()
    model = network()
    settings = Settings(
        privacy=Privacy(**PROMISE, sampling=sampling),
        method=METHODS[name],
        training=Training(
            batch=None if name == "gd" else B, steps=11, optimizer="sgd", learning_rate=0.4, output="tail"
        ),
        seed=7,
    )
    theirs = train(model, multiclass_loss, records(), settings, out=tmp_path / "train")
    assert (tmp_path / "own/model.safetensors").read_bytes() == (tmp_path / "train/model.safetensors").read_bytes()
    assert charges(tmp_path / "own") == charges(tmp_path / "train")
    assert mine.epsilon == theirs.epsilon
    assert verify(tmp_path / "own").ok


def test_the_users_own_model_moves_with_every_step_and_keeps_its_names(tmp_path):
    model = network()
    run, names, seen = private(tmp_path / "run", model=model), list(model.state_dict()), []
    go(run, after=lambda: seen.append(model[0].weight.detach().clone()))
    assert list(model.state_dict()) == names
    assert len({tuple(value.flatten().tolist()) for value in seen}) == len(seen) == 11
    model.eval()
    assert torch.equal(model(records()[0]), model(records()[0]))
    run.finish()
    assert torch.equal(load_file(tmp_path / "run/model.safetensors")["0.weight"], seen[-1])


def test_what_is_printed_has_no_private_number(tmp_path):
    run = private(tmp_path / "run")
    seen = run.step(next(iter(run.data_loader)))
    assert repr(seen) == str(seen) == "Progress(step 1 of 11)"
    assert repr(run) == f"PrivateTraining({str(tmp_path / 'run')!r}, 1 steps made)"


def test_finish_puts_the_output_back(tmp_path):
    model = network()
    run = private(tmp_path / "run", model=model)
    go(run)
    with torch.no_grad():
        model[0].weight.zero_()
    run.finish()
    assert torch.equal(load_file(tmp_path / "run/model.safetensors")["0.weight"], model[0].weight)
    assert model[0].weight.abs().sum() > 0


def test_schedulers_and_epochs(tmp_path):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    run = private(tmp_path / "run", model=model, optimizer=optimizer, steps=None, epochs=3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    moved, before = [], model[0].weight.detach().clone()
    for _ in range(3):
        assert len(run.data_loader) == 10
        for batch in run.data_loader:
            run.step(batch)
        moved.append(float((model[0].weight.detach() - before).norm()))
        before = model[0].weight.detach().clone()
        scheduler.step()
    assert moved[0] > 5 * moved[1] > 25 * moved[2] > 0
    assert run.done
    with pytest.raises(InputError, match="all planned releases were made"):
        iter(run.data_loader)
    assert run.finish().epsilon <= PROMISE["epsilon"]


def test_epsilon_is_that_of_what_was_released(tmp_path):
    run = private(tmp_path / "run", steps=100)
    assert run.epsilon == 0
    go(run, 3)
    early = run.epsilon
    assert read_ledger(tmp_path / "run/ledger.jsonl").spending.releases == 64
    go(run, 20)
    assert 0 < early < run.epsilon


def test_epsilon_does_not_forget_what_was_seen(tmp_path):
    """Gone back from 90 releases to 20, it was that of 20 (1.11 instead of 2.54); so it was after a crash."""
    run = private(tmp_path / "run", steps=90, performance=Performance(checkpoint_steps=30))
    go(run, 5)
    state = run.state_dict()
    go(run, 70)
    seen = run.epsilon
    run.load_state_dict(state)
    assert run.epsilon >= seen
    go(run, 3)
    assert run.epsilon >= seen
    run._abandoned()
    again = private(tmp_path / "run", steps=90, performance=Performance(checkpoint_steps=30), resume=True)
    assert again.steps_made < 75
    assert again.epsilon >= seen
    while again.steps_made < 75:
        go(again, 1)
    assert again.epsilon == seen
    assert again.finish().epsilon > seen


def test_an_early_stop_is_honest(tmp_path):
    run = private(tmp_path / "run", steps=200)
    go(run, 80)
    spent = run.epsilon
    finished = run.finish()
    found = verify(tmp_path / "run")
    assert found.ok
    assert found.facts.released == 80
    assert found.facts.spending.releases == 128
    text = (tmp_path / "run/certificate.md").read_text()
    assert "80 releases made of 128 charged" in text
    assert "stopped before its plan of 200 releases" in text
    assert spent < found.guarantee.epsilon == finished.epsilon == run._run.prepared.plan.guarantee.epsilon


def test_a_plan_in_the_closing_line_must_hold_the_charges(tmp_path):
    run = private(tmp_path / "run", steps=200)
    go(run, 3)
    run.finish()
    lines = (tmp_path / "run/ledger.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["body"]["planned"][0][1] == 200


@pytest.mark.parametrize("output", ["last", "tail", "random", "ema"])
@pytest.mark.parametrize("made", [0, 3])
def test_a_run_stopped_before_its_output_keeps_anything_has_the_newest(tmp_path, output, made):
    run = private(tmp_path / "run", steps=200, output=output)
    go(run, made) if made else None
    newest = run._run.prepared.walk.theta.clone()
    module = run.finish().module
    found = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(found, newest) or output in ("ema", "random")
    assert verify(tmp_path / "run").ok


# what is not the draw


def written(batch, inputs):
    """The batch, after a write through another name for its inputs."""
    inputs *= 2
    return batch


@pytest.mark.parametrize(
    "other",
    [
        lambda batch: (batch[0].clone(), batch[1]),
        lambda batch: (batch[0][:1], batch[1][:1]),
        lambda batch: (batch[0].mul_(2), batch[1]),
        lambda batch: written(batch, batch[0].data),
        lambda batch: written(batch, batch[0].numpy()),
        lambda batch: records(),
        lambda batch: batch[0],
    ],
    ids=["copy", "part", "changed in place", "through data", "through NumPy", "everything", "other tree"],
)
def test_only_what_was_drawn_is_taken(tmp_path, other):
    run = private(tmp_path / "run", sampling="wor")
    batch = next(iter(run.data_loader))
    with pytest.raises(InputError, match="drew last"):
        run.step(other(batch))
    assert read_ledger(tmp_path / "run/ledger.jsonl").spending.releases == 0


def test_a_dictionary_with_another_tensor_in_it_is_refused(tmp_path):
    """`batch["x"] = …`: the loader must not look for what it gave in the dictionary that it gave."""
    inputs, targets = records()
    rows = [{"x": x, "y": y} for x, y in zip(inputs, targets, strict=True)]
    loader = DataLoader(rows, batch_size=B)
    of_rows = {"losses": lambda model, batch: losses(model, (batch["x"], batch["y"]))}
    run = private(tmp_path / "run", loader=loader, **of_rows)
    batch = next(iter(run.data_loader))
    drawn = batch["x"]
    batch["x"] = (drawn - drawn.mean(0)) / drawn.std(0)
    with pytest.raises(InputError, match="drew last"):
        run.step(batch)
    batch["x"] = drawn
    assert run.step(batch).step == 1


def test_a_step_is_made_of_what_was_drawn_whatever_becomes_of_it(tmp_path):
    """Between the check and the sum, too: the step is made of the loader's own copy."""
    run = private(tmp_path / "run")
    batch = next(iter(run.data_loader))
    before = [tensor.clone() for tensor in batch]
    drawn = run.data_loader.take(batch)
    batch[0].data.zero_()
    assert all(torch.equal(x, y) for x, y in zip(drawn.batch, before, strict=True))


def test_a_linear_model_is_moved_by_what_was_drawn_and_noted(tmp_path):
    """Its records are read where they lie: changed after the draw, the same noise would be given to another sum."""
    moved = []
    for factor in (1.0, 1000.0):
        (inputs, targets), model = records(), nn.Linear(6, 3)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        run = make_private(
            model=model,
            losses=multiclass_loss,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.4),
            data=(inputs, targets),
            out=tmp_path / f"{factor}",
            **{"batch_size": B, "steps": 3, "method": METHODS["srm"], "seed": 7, **PROMISE},
        )
        batch = next(iter(run.data_loader))
        inputs.mul_(factor)
        run.step(batch)
        moved.append(model.weight.detach().clone())
    assert torch.equal(*moved)


def test_a_batch_counts_once_and_none_is_left_out(tmp_path):
    run = private(tmp_path / "run")
    batches = iter(run.data_loader)
    inputs, targets = next(batches)
    with pytest.raises(InputError, match="every batch that is drawn"):
        next(batches)
    run.step((inputs, targets))  # the same tensors in a new tuple
    with pytest.raises(InputError, match="drew last"):
        run.step((inputs, targets))


class Jittered(Dataset):
    """Records that are other ones each time they are read."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return records()[0][i] + torch.rand(6), records()[1][i]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_was_not_used_comes_again(tmp_path, workers):
    """Read anew, with other random crops, it would be a choice among batches by what the loop saw in them."""
    loader = DataLoader(Jittered(), batch_size=B, num_workers=workers)
    run = private(tmp_path / "run", loader=loader)
    go(run, 2)
    seen = []
    with pytest.raises(Power):  # noqa: PT012
        for batch in run.data_loader:
            seen.append(batch)
            raise Power
    with pytest.raises(InputError, match="drew last"):
        run.step(records())
    batches = iter(run.data_loader)
    batch = next(batches)
    assert all(x is y for x, y in zip(seen[0], batch, strict=True))
    kept = batch[0].clone()
    batch[0].data.zero_()
    batches = iter(run.data_loader)
    batch = next(batches)
    assert torch.equal(batch[0], kept), "changed and drawn again, the same numbers"
    assert run.step(batch).step == 3
    assert run.step(next(batches)).step == 4


def test_what_is_left_of_the_ordinary_step_does_nothing(tmp_path):
    """`optimizer.zero_grad()` and `optimizer.step()` may stay in the loop; a `backward()` too many is refused."""
    models = []
    for leave in (False, True):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        run = private(tmp_path / f"run{leave}", model=model, optimizer=optimizer)
        for batch in run.data_loader:
            if leave:
                optimizer.zero_grad()
            run.step(batch)
            if leave:
                optimizer.step()
        models.append(run.finish().folder.model.read_bytes())
    assert models[0] == models[1]
    run = private(tmp_path / "moved", model=model, optimizer=optimizer)
    with pytest.raises(InputError, match="only step"):  # noqa: PT012
        for batch in run.data_loader:
            run.step(batch)
            losses(model, batch).mean().backward()
            optimizer.step()


def test_inference_mode_is_refused_and_costs_nothing(tmp_path):
    run = private(tmp_path / "run")
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        next(iter(run.data_loader))
    batch = next(iter(run.data_loader))
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        run.step(batch)
    assert run.steps_made == 0
    go(run)
    assert verify(run.finish().folder.path).ok


def test_only_steps_move_the_model(tmp_path):
    model = network()
    run = private(tmp_path / "run", model=model)
    go(run, 2)
    with torch.no_grad():
        model[0].weight.mul_(0.9)
    with pytest.raises(InputError, match="only step"):
        go(run, 1)


def test_what_the_loop_writes_into_buffers_is_not_published(tmp_path):
    """A model run on private records by the loop itself, in training mode, keeps statistics of them."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, affine=False, momentum=0.5)
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(self.norm(x))

    model = Normalised().eval()
    run = private(tmp_path / "run", model=model)

    def measure():
        model.train()
        model(records()[0])
        model.eval()

    go(run, after=measure)
    assert float(model.norm.running_mean.norm()) > 0
    run.finish()
    saved = load_file(tmp_path / "run/model.safetensors")
    assert not saved["norm.running_mean"].any()
    assert not model.norm.running_mean.any()


# resuming


class Power(Exception):
    """It failed."""


def test_an_error_in_the_loop_leaves_a_run_that_resumes_to_the_same_bits(tmp_path):
    whole = private(tmp_path / "whole")
    go(whole)
    whole.finish()
    for keep in (1, 4):
        folder = tmp_path / f"run{keep}"
        steps, done = Performance(checkpoint_steps=keep), []
        with pytest.raises(Power) as stopped, private(folder, performance=steps) as run:  # noqa: PT012
            go(run, 6)
            raise Power
        assert "resume=True" in stopped.value.__notes__[0]
        with private(folder, performance=steps, model=network(5), resume=True) as run:
            assert run.steps_made == 6 // keep * keep
            go(run, after=lambda done=done: done.append(1))
            run.finish()
        assert len(done) == 11 - 6 // keep * keep
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
        assert charges(folder) == charges(tmp_path / "whole")


SCRIPT = """
import os, signal, sys
import torch
sys.path.insert(0, {tests!r})
from training.test_private import *
out, state = Path(sys.argv[1]), Path(sys.argv[2])
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
run = private(out, model=model, optimizer=optimizer, resume=state.exists(), name=sys.argv[4])
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
if state.exists():
    kept = torch.load(state, weights_only=True)
    run.load_state_dict(kept["private"])
    scheduler.load_state_dict(kept["scheduler"])
while not run.done:
    for batch in run.data_loader:
        made = run.step(batch).step
        scheduler.step()
        if made % 3 == 0:
            torch.save({{"private": run.state_dict(), "scheduler": scheduler.state_dict()}}, state)
        if made == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
run.finish()
"""


@pytest.mark.parametrize("name", ["srm", "disk"])
def test_killed_in_the_loop_and_resumed_through_its_state(tmp_path, name):
    def script(out, die):
        code = SCRIPT.format(tests=str(Path(__file__).resolve().parents[1]))
        command = [sys.executable, "-c", code, tmp_path / out, tmp_path / f"{out}.pt", str(die), name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert script("whole", 0).returncode == 0
    for die in (5, 8):
        assert script("run", die).returncode == -signal.SIGKILL
    last = script("run", 0)
    assert last.returncode == 0, last.stderr
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert charges(tmp_path / "run") == charges(tmp_path / "whole")
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("rate", [0.4, 0.2])
def test_noise_is_never_made_again_for_another_question(tmp_path, rate):
    """Back at an earlier state, a loop that goes another way would get the same noise for another sum."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    run = private(tmp_path / "run", model=model, optimizer=optimizer)
    go(run, 3)
    state = run.state_dict()
    go(run, 4)
    then = [p.clone() for p in model.parameters()]
    run.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = rate
    if rate == 0.4:
        go(run, 4)
        assert all(torch.equal(x, y) for x, y in zip(then, model.parameters(), strict=True))
    else:
        go(run, 1)  # the first step asks at the same parameters; the second no longer does
        with pytest.raises(ResumeError, match="learning rate"):
            go(run, 1)
        assert run.finish().folder.certificate.exists()


def test_what_was_released_before_going_back_counts_as_made(tmp_path):
    run = private(tmp_path / "run", steps=100)
    state = run.state_dict()
    go(run, 7)
    run.load_state_dict(state)
    go(run, 2)
    run.finish()
    found = verify(tmp_path / "run")
    assert found.ok
    assert found.facts.released == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_going_back_within_a_pass(tmp_path, workers):
    """What workers had read ahead was for other releases: the next step was refused, in words about another batch."""
    moved = []
    for name in ("straight", "back"):
        loader = DataLoader(TensorDataset(*records()), batch_size=B, num_workers=workers)
        run = private(tmp_path / name, loader=loader, steps=5)
        state = run.state_dict()
        for before, batch in enumerate(run.data_loader, 1):
            run.step(batch)
            if name == "back" and before == 2:
                run.load_state_dict(state)
        go(run)
        moved.append(run.finish().folder.model.read_bytes())
    assert moved[0] == moved[1]


def test_other_records_at_an_earlier_state_are_refused(tmp_path):
    inputs, targets = records()
    run = private(tmp_path / "run", loader=DataLoader(TensorDataset(inputs, targets), batch_size=B), sampling="wor")
    state = run.state_dict()
    go(run, 2)
    inputs.mul_(2)
    run.load_state_dict(state)
    with pytest.raises(ResumeError, match="records"):
        go(run, 1)


def test_a_state_of_another_run_is_refused(tmp_path):
    states = []
    for name, seed in (("a", 1), ("b", 2)):
        run = private(tmp_path / name, seed=seed)
        go(run, 2)
        states.append(run.state_dict())
    with pytest.raises(ResumeError, match="another run"):
        run.load_state_dict(states[0])
    broken = {"dpsrm": states[1]["dpsrm"].clone()}
    broken["dpsrm"][-3] += 1
    with pytest.raises(ResumeError, match="changed"):
        run.load_state_dict(broken)
    with pytest.raises(ResumeError, match="not a state"):
        run.load_state_dict({"model": 1})


def test_resuming_needs_the_same_settings_and_a_folder(tmp_path):
    with private(tmp_path / "run") as run:
        go(run, 2)
    with pytest.raises(ResumeError, match="settings"):
        private(tmp_path / "run", epsilon=31.0, resume=True)
    with pytest.raises(ResumeError, match="out"):
        private(None, resume=True)
    with pytest.raises(InputError, match="must not exist"):
        private(tmp_path / "run")
    with private(tmp_path / "run", resume=True) as run:
        go(run)
        run.finish()


def test_runs_without_a_name_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [private(None).folder for _ in range(2)]
    assert folders[0] != folders[1]
    assert all(folder.parent.name == "runs" for folder in folders)


# what people bring


class Words(Dataset):
    """Sentences of different lengths."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return {"ids": torch.arange(1, 3 + i % 4), "label": i % 2}


def padded(items):
    ids = nn.utils.rnn.pad_sequence([item["ids"] for item in items], batch_first=True)
    return {"ids": ids, "labels": torch.tensor([item["label"] for item in items])}


class Bag(nn.Module):
    """A bag of words that forgets to leave out the padding: alone, no record is padded."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


def words_losses(model, batch):
    return nn.functional.cross_entropy(model(batch["ids"]), batch["labels"], reduction="none")


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_dictionaries_by_the_users_collate_function_and_workers(tmp_path, workers):
    torch.manual_seed(0)
    model = Bag()
    loader = DataLoader(Words(), batch_size=3, collate_fn=padded, num_workers=workers)
    run = private(tmp_path / "run", model=model, loader=loader, losses=words_losses, steps=None, epochs=1)
    assert len(run.data_loader) == 13
    go(run)
    run.finish()
    theta = torch.cat([p.flatten() for p in model.parameters()]).tolist()
    expected = tmp_path.parent / "ragged.json"
    if expected.exists():
        assert theta == json.loads(expected.read_text())
    expected.write_text(json.dumps(theta))


@pytest.mark.parametrize(("lengths", "lines"), [(8, 1), (1, 0)])
def test_records_of_many_shapes_are_told_once(tmp_path, caplog, lengths, lines):
    words = [{"ids": torch.ones(1 + i % lengths, dtype=torch.long), "label": i % 2} for i in range(60)]
    loader = DataLoader(words, batch_size=40, collate_fn=padded)
    run = private(tmp_path / "run", model=Bag(), loader=loader, losses=words_losses, steps=2)
    go(run)
    assert sum("pad all records to one length" in record.getMessage() for record in caplog.records) == lines


def test_labels_that_do_not_suit_the_loss_are_told_how(tmp_path):
    X, y = torch.randn(50, 3), torch.arange(50) % 2
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-4), training=Training(batch=10, steps=2))
    for loss, labels, width, words in (
        (nn.CrossEntropyLoss(reduction="none"), y.float(), 2, r"labels\.long\(\)"),
        (nn.BCEWithLogitsLoss(reduction="none"), y, 1, "binary_loss"),
    ):
        with pytest.raises(InputError, match=words):
            train(nn.Linear(3, width), loss, (X, labels), settings, out=tmp_path / "run")
    with pytest.raises(InputError, match="the dataset of a DataLoader"):
        train(nn.Linear(3, 2), loss, DataLoader(TensorDataset(X, y)), settings, out=tmp_path / "run")


WEIGHTED = DataLoader(TensorDataset(*records()), batch_size=B, sampler=WeightedRandomSampler(torch.ones(N), N))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": Agd()}, "agd"),
        ({"method": "srm", "momentum": 0.5}, "unknown"),
        ({"method": "nothing"}, "must be one of"),
        ({"epochs": 1}, "epochs or steps, not both"),
        ({"steps": 0}, "steps must be 1 or more, and whole"),
        ({"steps": None, "epochs": 1.5}, "epochs and steps must be 1 or more"),
        ({"sampling": "shuffle"}, "sampling must be one of wor, poisson"),
        ({"adjacency": "add_remove"}, "adjacency must be one of replace-one, add-remove"),
        ({"isolation": "none"}, "isolation must be one of"),
        ({"data": records()}, "data_loader, or data"),
        (
            {
                "loader": DataLoader(
                    TensorDataset(*records()), batch_size=B, sampler=WeightedRandomSampler(torch.ones(N), N)
                )
            },
            "sampler of one's own",
        ),
        (
            {"loader": DataLoader(TensorDataset(*records()), batch_size=B, sampler=SequentialSampler(range(60)))},
            f"also those that a sampler would leave out; got sampler=60, records={N}",
        ),
        (
            {
                "loader": DataLoader(
                    TensorDataset(*records()), batch_size=B, sampler=RandomSampler(range(N), num_samples=60)
                )
            },
            "also those that a sampler would leave out",
        ),
        ({"loader": DataLoader(TensorDataset(*records()), batch_size=None)}, "batch_size"),
        ({"loader": DataLoader(TensorDataset(*records()), batch_size=500)}, "batch_size"),
        ({"epsilon": "3"}, "epsilon must be a number; got epsilon='3'"),
        ({"max_grad_norm": "1"}, "max_grad_norm must be a number"),
        ({"losses": "cross-entropy"}, "losses is a function"),
        ({"losses": F.cross_entropy}, 'use reduction="none"'),
        ({"losses": lambda outputs, targets: F.cross_entropy(outputs, targets)}, r"losses\(model, batch\) must take"),
    ],
)
def test_bad_input_is_one_line(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        private(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_unknown_settings_are_answered_with_real_ones(tmp_path):
    with pytest.raises(InputError, match="follows the model's parameters") as caught:
        private(tmp_path / "run", method="srm", device="cuda")
    assert "max_grad_norm" in str(caught.value)
    assert "summary" not in str(caught.value), "no setting"
    with pytest.raises(InputError, match="the promise is called epsilon"):
        private(tmp_path / "run", method="srm", target_epsilon=1)


def test_what_is_finished_stays_so(tmp_path):
    run = private(tmp_path / "run")
    go(run)
    assert run.finish() is run.finish()
    assert verify(tmp_path / "run").ok
    with pytest.raises(InputError, match="the run is finished"):
        run.step(records())


def test_a_folder_that_exists_is_refused_in_words_of_python(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=r"overwrite=True.*resume=True") as caught:
        private(tmp_path / "run")
    assert "--" not in str(caught.value)


def test_whole_numbers_of_numpy_and_what_is_no_loader(tmp_path):
    run = private(tmp_path / "run", steps=np.int64(3))
    assert run._run.prepared.plan.schedule.steps == len(run.data_loader) == 3
    with pytest.raises(InputError, match="a DataLoader of torch; got type='list'"):
        private(tmp_path / "list", loader=[1, 2])


def test_optimizers_that_cannot_step(tmp_path):
    model = network()
    with pytest.raises(InputError, match="every trainable parameter"):
        private(tmp_path / "run", model=model, optimizer=torch.optim.SGD(model[0].parameters(), lr=1))
    with pytest.raises(InputError, match="evaluates the loss"):
        private(tmp_path / "run", model=model, optimizer=torch.optim.LBFGS(model.parameters()))
    inner = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.raises(InputError, match="without what is wrapped around it"):
        private(tmp_path / "run", model=model, optimizer=SimpleNamespace(param_groups=inner.param_groups, defaults={}))
    more = [*model.parameters(), nn.Parameter(torch.ones(1))]
    with pytest.raises(InputError, match="no other parameters"):
        private(tmp_path / "run", model=model, optimizer=torch.optim.SGD(more, lr=1))


def test_a_name_with_its_settings(tmp_path):
    run = private(tmp_path / "run", name="srm", method="sgd", max_grad_norm=0.7, momentum=0.3)
    assert run._run.prepared.plan.method == Sgd(max_grad_norm=0.7, momentum=0.3)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), partial(F.cross_entropy, reduction="none")])
def test_a_loss_of_torch(tmp_path, loss):
    run = private(tmp_path / "run", losses=loss)
    go(run)
    run.finish()
    assert verify(tmp_path / "run").ok
