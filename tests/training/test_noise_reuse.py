"""Noise that was published is never made again for another sum, in `train` or in one's own loop, whatever changed."""

import json
import os
import shutil
import subprocess
import threading

import pytest
import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import LedgerError, ResumeError
from dpsrm.methods import Agd, Sgd
from dpsrm.training import Performance, Privacy, Settings, Training, make_private, resume, train

N = 60


class Killed(Exception):
    """Stands for whatever ends a process."""


def data():
    stream = torch.Generator().manual_seed(0)
    targets = 2 + torch.rand(N, generator=stream)
    targets[:8] = 1
    return torch.randn(N, 3, generator=stream), targets


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))


def plain(outputs, targets):
    return (outputs.squeeze(1) - targets) ** 2


def settings(**changes):
    return Settings(
        **{
            "privacy": Privacy(epsilon=1.0, delta=1e-5, accountant="rdp"),
            "method": Sgd(max_grad_norm=20.0),
            "training": Training(batch=20, steps=6, learning_rate=0.5, optimizer="sgd"),
            "performance": Performance(checkpoint_steps=3),
            **changes,
        }
    )


def stop_at(step, also=lambda: None):
    def watch(progress):
        also()
        if progress.step == step:
            raise Killed

    return watch


def killed(out, loss, step=5, also=lambda: None, **changes):
    with pytest.raises(Killed):
        train(network(), loss, data(), settings(**changes), out=out, callbacks=[stop_at(step, also)])


def ledger(out):
    return (out / "ledger.jsonl").read_bytes()


class Annealed:
    """A loss with a weight that begins at 0 in every process and grows with every step.

    From 1 on no gradient points where it did, so that no clip can hide the difference.
    """

    weight = 0.0

    def __call__(self, outputs, targets):
        return (1 - self.weight) * plain(outputs, targets)

    def anneal(self, *_):
        self.weight += 1.0


def test_a_loss_annealed_by_a_callback_begins_anew_after_a_crash_and_is_refused(tmp_path):
    first, again = Annealed(), Annealed()
    killed(tmp_path / "run", lambda outputs, targets: first(outputs, targets), also=first.anneal)
    before, seen = ledger(tmp_path / "run"), []
    with pytest.raises(ResumeError, match="release 3 was made before, from another sum"):
        resume(tmp_path / "run", network(), lambda o, t: again(o, t), data(), callbacks=[seen.append])
    assert not seen
    assert ledger(tmp_path / "run") == before


def other_beyond_eight(outputs, targets):
    """Another loss, for records not among those compared when a run is resumed; no clip can hide it."""
    return torch.where(targets > 1, -1.0, 1.0) * plain(outputs, targets)


@pytest.mark.parametrize("method", [Sgd(max_grad_norm=20.0), Agd()])
def test_another_loss_that_eight_records_do_not_show_is_refused(tmp_path, method):
    """No checkpoint is made on the way: AGD makes as many releases as it likes, and one might fall on the last."""
    training = settings().training if isinstance(method, Sgd) else Training(steps=8)
    performance = Performance(checkpoint_steps=1000)
    killed(tmp_path / "run", plain, method=method, training=training, performance=performance)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(ResumeError, match="from another sum"):
        resume(tmp_path / "run", network(), other_beyond_eight, data())
    assert ledger(tmp_path / "run") == ledger(tmp_path / "copy")
    resume(tmp_path / "run", network(), plain, data())
    assert dpsrm.verify(tmp_path / "run").ok


def test_what_no_callback_saw_is_known_too(tmp_path):
    """A loss sees θ as well, and may tell: fingerprints are written whether or not there is a callback."""
    never, calls = settings(performance=Performance(checkpoint_steps=1000)), []

    def fails(outputs, targets):
        calls.append(1)
        if len(calls) > 8:
            raise KeyboardInterrupt
        return plain(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        train(network(), fails, data(), never, out=tmp_path / "run")
    assert (tmp_path / "run/private/sums.log").read_text().count("\n") > 2
    with pytest.raises(ResumeError, match="from another sum"):
        resume(tmp_path / "run", network(), other_beyond_eight, data())


def own(out, *, losses, rate=0.1, **changes):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    chosen = {"batch_size": 20, "steps": 6, "epsilon": 1.0, "delta": 1e-5, "method": "sgd", "accountant": "rdp"}
    chosen["max_grad_norm"] = 20.0

    def each(model, batch):
        return losses(model(batch[0]), batch[1])

    return make_private(model=model, losses=each, optimizer=optimizer, data=data(), out=out, **chosen, **changes)


def test_a_loss_annealed_by_ones_own_loop_is_refused_back_at_an_earlier_state(tmp_path):
    loss = Annealed()
    run = own(tmp_path / "run", losses=loss)
    batches = iter(run.data_loader)
    run.step(next(batches))
    state = run.state_dict()
    run.step(next(batches))
    run.load_state_dict(state)
    loss.weight, theta = 1.0, [p.clone() for p in run._run.prepared.objective.module.parameters()]
    before = ledger(tmp_path / "run")
    batch = next(iter(run.data_loader))
    with pytest.raises(ResumeError, match="release 1 was made before, from another sum"):
        run.step(batch)
    assert all(map(torch.equal, theta, run._run.prepared.objective.module.parameters()))
    loss.weight = 0.0
    run.step(batch)
    for batch in run.data_loader:
        run.step(batch)
    run.finish()
    assert ledger(tmp_path / "run").startswith(before)
    assert dpsrm.verify(tmp_path / "run").ok


def test_a_process_that_was_forked_off_makes_no_release(tmp_path, monkeypatch):
    """It would add the parent's noise to sums of its own."""
    run = own(tmp_path / "run", losses=plain)
    batches = iter(run.data_loader)
    run.step(next(batches))
    before, batch, parent = ledger(tmp_path / "run"), next(batches), os.getpid()
    sums = (tmp_path / "run/private/sums.log").read_bytes()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(LedgerError, match="forked off"):
        run.step(batch)
    assert ledger(tmp_path / "run") == before
    assert (tmp_path / "run/private/sums.log").read_bytes() == sums, "the parent's record of its sums is left alone"
    monkeypatch.setattr(os, "getpid", lambda: parent)
    assert run.step(batch).step == 2


def test_another_thread_draws_before_a_release_or_after_it(tmp_path, monkeypatch):
    """In between it would move the stream that the release takes its noise from."""
    run = own(tmp_path / "run", losses=plain)
    batch, step, waited = next(iter(run.data_loader)), run._run.step, []
    other, total = threading.Thread(target=step.draw, args=(1,)), step.sums.total

    def summed(*args, **kwargs):
        other.start()
        other.join(0.3)
        waited.append(other.is_alive())
        return total(*args, **kwargs)

    monkeypatch.setattr(step.sums, "total", summed)
    run.step(batch)
    other.join(30)
    assert waited == [True]
    assert not other.is_alive()


def interrupted(out, steps=4):
    with own(out, losses=plain, performance=Performance(checkpoint_steps=3)) as run:
        for _, batch in zip(range(steps), run.data_loader, strict=False):
            run.step(batch)
    return out / "private" / "sums.log"


def test_a_copy_of_a_run_does_not_go_on_beside_it(tmp_path):
    """With another learning rate its sums would be others, under the same noise; a folder may be renamed."""
    interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    same = {"losses": plain, "performance": Performance(checkpoint_steps=3), "resume": True}
    for changes in ({}, {"rate": 0.9}):
        with pytest.raises(ResumeError, match=r"keys\.json is a copy"):
            own(tmp_path / "copy", **same, **changes)
    (tmp_path / "run").rename(tmp_path / "renamed")
    own(tmp_path / "renamed", **same).__exit__(None, None, None)
    keys = tmp_path / "copy/private/keys.json"
    key = json.loads(keys.read_text())["key"]
    own(tmp_path / "copy", **same, moved=True).__exit__(None, None, None)
    with own(tmp_path / "copy", **same) as run:  # who said so once need not again
        assert json.loads(keys.read_text())["key"] == key
        assert not keys.with_suffix(".new").exists()
        for batch in run.data_loader:
            run.step(batch)
        run.finish()
    assert dpsrm.verify(tmp_path / "copy").ok


RESTORE = {
    "cp -a": lambda back, run: subprocess.run(["cp", "-a", f"{back}/.", run], check=True),
    "cp -r": lambda back, run: subprocess.run(["cp", "-r", f"{back}/.", run], check=True),
    "copytree": lambda back, run: shutil.copytree(back, run, dirs_exist_ok=True),
    "tar": lambda back, run: subprocess.run(f"tar -C {back} -cf - . | tar -C {run} -xf -", shell=True, check=True),
    "moved aside": lambda back, run: (shutil.rmtree(run), shutil.copytree(back, run)),
}


@pytest.mark.parametrize("restore", RESTORE.values(), ids=RESTORE)
def test_nor_does_a_backup_that_was_put_back_in_its_place(tmp_path, restore):
    """Releases after the backup were seen: made again with another learning rate, they would have the same noise."""
    interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "back")
    same = {"losses": plain, "performance": Performance(checkpoint_steps=3), "resume": True}
    with own(tmp_path / "run", **same) as run:
        for _, batch in zip(range(3), run.data_loader, strict=False):
            run.step(batch)
    restore(tmp_path / "back", tmp_path / "run")
    for changes in ({}, {"rate": 0.9}):
        with pytest.raises(ResumeError, match=r"keys\.json is a copy.*--moved"):
            own(tmp_path / "run", **same, **changes)
    for word in ({"moved": True}, {}):
        own(tmp_path / "run", **same, **word).__exit__(None, None, None)


def test_nor_does_one_of_which_only_changed_files_were_put_back(tmp_path):
    """As rsync does it: a new file with the old time, and what is the same is left alone."""
    path = interrupted(tmp_path / "run")
    before, times = path.read_bytes(), path.stat()
    same = {"losses": plain, "performance": Performance(checkpoint_steps=3), "resume": True}
    with own(tmp_path / "run", **same) as run:
        for _, batch in zip(range(1), run.data_loader, strict=False):
            run.step(batch)
    path.write_bytes(before)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - 60 * 10**9))  # a minute ago
    with pytest.raises(ResumeError, match=r"sums\.log is a copy.*--moved"):
        own(tmp_path / "run", **same)
    for word in ({"moved": True}, {}):
        own(tmp_path / "run", **same, **word).__exit__(None, None, None)


def test_whoever_moved_a_run_says_so(tmp_path):
    killed(tmp_path / "run", plain)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(ResumeError, match="--moved"):
        resume(tmp_path / "copy", network(), plain, data())
    resume(tmp_path / "copy", network(), plain, data(), moved=True)


def test_another_learning_rate_is_refused_where_the_log_is_gone_too(tmp_path):
    path = interrupted(tmp_path / "run")
    content = path.read_text().splitlines(keepends=True)
    assert len(content) == 5
    losses = {"losses": plain, "performance": Performance(checkpoint_steps=3), "resume": True}
    path.unlink()
    with pytest.raises(ResumeError, match=r"sums\.log cannot be read"):
        own(tmp_path / "run", rate=0.9, **losses)
    path.write_text("".join(content[:3]))
    with pytest.raises(ResumeError, match="knows 2 of 3 releases"):
        own(tmp_path / "run", **losses)
    path.write_text("".join(content))
    with own(tmp_path / "run", **losses) as run:
        for batch in run.data_loader:
            run.step(batch)
        run.finish()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["train", "own"])
def test_it_is_on_disk_before_anybody_sees_a_release(tmp_path, monkeypatch, kind):
    synced, real, path = [0], os.fsync, tmp_path / "run/private/sums.log"

    def fsync(handle):
        real(handle)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            synced.append(path.read_text().count("\n") - 1)

    monkeypatch.setattr(os, "fsync", fsync)
    never = Performance(checkpoint_steps=1000)
    if kind == "train":
        seen = []
        chosen = settings(performance=never)
        watch = [lambda progress: seen.append((progress.step, synced[-1]))]
        train(network(), plain, data(), chosen, out=tmp_path / "run", callbacks=watch)
        assert seen == [(step, step) for step in range(1, 7)]
    else:
        with own(tmp_path / "run", losses=plain, performance=never) as run:
            for batch in run.data_loader:
                assert run.step(batch).step == synced[-1]


def test_callbacks_that_look_now_and_then_let_the_disk_rest(tmp_path, monkeypatch):
    """And what is published at the end is on disk before."""
    synced, real, path = [], os.fsync, tmp_path / "run/private/sums.log"

    def fsync(handle):
        real(handle)
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            synced.append((path.read_text().count("\n") - 1, (tmp_path / "run/model.safetensors").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    callbacks = dpsrm.Evaluate(lambda _: {"a": 0.0}, every=4), dpsrm.EarlyStopping("a", patience=5)
    chosen = settings(performance=Performance(checkpoint_steps=1000))
    train(network(), plain, data(), chosen, out=tmp_path / "run", callbacks=callbacks)
    assert synced == [(4, False), (6, False)]
    synced.clear()
    train(network(), plain, data(), chosen, out=tmp_path / "run", overwrite=True)
    assert synced == [(6, False)]
