"""Resume: interrupted anywhere and resumed, the run is the one it would have been; anything changed is refused."""

import json
import os
import shutil

import pytest
import torch
from torch import nn

import dpsrm
from conftest import make_problem
from dpsrm.core.errors import DpsrmError, InputError, LedgerError, ResumeError
from dpsrm.core.secret import Streams
from dpsrm.data import Records, SparseRecords
from dpsrm.gradients import binary_loss, squared_loss
from dpsrm.methods import Agd, Disk, Rrpsgd, Sgd, Spider, Srm
from dpsrm.runs import verify
from dpsrm.runs.ledger import Ledger, read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, resume, train
from dpsrm.training import train as train_function

PRIVACY = Privacy(epsilon=20.0, delta=1e-5, noise_multiplier=2.0)
EVERY = Performance(checkpoint_steps=3)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def settings(**changes):
    training = Training(batch=20, first_batch=50, steps=10, learning_rate=0.1)
    return Settings(**{"privacy": PRIVACY, "training": training, "performance": EVERY, "seed": 3, **changes})


def parts(kind="mlp"):
    objective, records = make_problem(kind)
    return objective.module, objective.loss, Records(*records(200))


def stop_at(step):
    def watch(progress):
        if progress.step == step:
            raise Interrupted

    return watch


def interrupted(tmp_path, step, *, kind="mlp", **changes):
    with pytest.raises(Interrupted):
        train(*parts(kind), settings(**changes), out=tmp_path / "run", callbacks=[stop_at(step)])
    return tmp_path / "run"


def whole(tmp_path, kind="mlp", **changes):
    return train(*parts(kind), settings(**changes), out=tmp_path / "whole").folder.path


def published(run):
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


VARIANTS = {
    "srm": {},
    "srm, relative, adam": {
        "method": Srm(relative=1.0),
        "training": Training(batch=20, steps=10, optimizer="adam", decay="cosine", warmup=2, regulariser=1e-3),
    },
    "sgd, dp-adam, ema": {
        "method": Sgd(momentum=0.9),
        "training": Training(batch=20, steps=10, optimizer="dp-adam", output="ema"),
    },
    "random iterate": {"training": Training(batch=20, steps=10, output="random")},
    "disk": {"method": Disk()},
    "spider": {"method": Spider(period=4)},
    "rrpsgd": {"method": Rrpsgd(), "training": Training(steps=60), "seed": 1},
    "agd": {"method": Agd(), "privacy": Privacy(epsilon=20.0, delta=1e-5), "training": Training(steps=8)},
    "not private": {"privacy": None},
    "wor": {"privacy": Privacy(epsilon=20.0, delta=1e-5, noise_multiplier=2.0, sampling="wor")},
}


@pytest.mark.parametrize("step", [1, 4, 7])
@pytest.mark.parametrize("name", VARIANTS)
def test_interrupted_and_resumed_is_the_uninterrupted_run(tmp_path, name, step):
    changes = VARIANTS[name]
    run = interrupted(tmp_path, step, **changes)
    resume(run, *parts())
    assert published(run) == published(whole(tmp_path, **changes))
    assert verify(run).ok


def test_secret_streams_are_resumed_too(tmp_path, monkeypatch):
    """Without a seed: the same key gives the same run, and only the key's own file knows it."""
    key = bytes(range(32))
    monkeypatch.setattr(Streams, "choose", classmethod(lambda cls, seed: cls(key, private=seed is None)))
    run = interrupted(tmp_path, 5, seed=None)
    for path in run.rglob("*"):
        if path.is_file() and path.name != "keys.json":
            content = path.read_bytes()
            assert key not in content
            assert key.hex().encode() not in content
            assert key[::-1] not in content
    resume(run, *parts())
    assert published(run) == published(whole(tmp_path, seed=None))
    assert read_ledger(run / "ledger.jsonl").header.private_randomness


def test_the_key_is_its_owners_alone_and_dies_with_the_run(tmp_path):
    run = interrupted(tmp_path, 5)
    keys = run / "private" / "keys.json"
    assert keys.stat().st_mode & 0o777 == 0o600
    inode = os.open(keys, os.O_RDONLY)
    resume(run, *parts())
    assert not keys.exists()
    assert not (run / "private" / "checkpoint.safetensors").exists()
    assert set(os.read(inode, 4096)) == {0}
    os.close(inode)
    with pytest.raises(ResumeError, match="finished"):
        resume(run, *parts())


def test_without_its_key_a_run_cannot_be_resumed(tmp_path):
    run = interrupted(tmp_path, 5)
    (run / "private" / "keys.json").unlink()
    with pytest.raises(ResumeError, match="destroyed"):
        resume(run, *parts())


def test_a_key_that_others_can_read_is_refused(tmp_path):
    run = interrupted(tmp_path, 5)
    (run / "private" / "keys.json").chmod(0o644)
    with pytest.raises(ResumeError, match="others"):
        resume(run, *parts())


def test_another_runs_key_is_refused(tmp_path):
    run = interrupted(tmp_path, 5)
    keys = run / "private" / "keys.json"
    keys.write_text(json.dumps({**json.loads(keys.read_text()), "key": "00" * 32}))
    with pytest.raises(ResumeError, match="another run"):
        resume(run, *parts())


def test_charges_made_ahead_are_used_up_not_made_again(tmp_path):
    run = interrupted(tmp_path, 5)
    before = (run / "ledger.jsonl").read_bytes()
    resume(run, *parts())
    after = (run / "ledger.jsonl").read_bytes()
    assert after.startswith(before)
    assert read_ledger(run / "ledger.jsonl").spending.releases == 10


def test_a_torn_last_line_was_no_charge(tmp_path):
    run = interrupted(tmp_path, 5)
    with (run / "ledger.jsonl").open("ab") as file:
        file.write(b'{"body":{"count":1,"ev')
    assert not verify(run).ok
    resume(run, *parts())
    assert published(run) == published(whole(tmp_path))


def test_a_charge_that_only_lost_its_line_end_is_used_up(tmp_path):
    run = interrupted(tmp_path, 5)
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-1])
    resume(run, *parts())
    assert published(run) == published(whole(tmp_path))
    assert verify(run).ok


def test_killed_while_it_closed_a_run_is_whole_or_resumed(tmp_path, monkeypatch):
    """Before the closing line it is resumed to the same bytes; after it, even without its line end, it is finished."""
    original = Ledger.close
    for written in (0, 100, -1, None):

        def dies(self, closing, written=written):
            before = self.path.stat().st_size
            original(self, closing)
            if written is not None:
                content = self.path.read_bytes()
                self.path.write_bytes(content[:before] + content[before:][:written])
            raise Interrupted

        monkeypatch.setattr(Ledger, "close", dies)
        out = tmp_path / str(written)
        with pytest.raises(Interrupted):
            train(*parts(), settings(), out=out)
        monkeypatch.setattr(Ledger, "close", original)
        if written in (0, 100):
            resume(out, *parts())
        with pytest.raises(ResumeError, match="finished"):
            resume(out, *parts())
        assert verify(out).ok
        assert not (out / "private" / "keys.json").exists()
    assert published(tmp_path / "0") == published(tmp_path / "-1") == published(whole(tmp_path))


def changed_data(module, loss, records):
    inputs = records.inputs.clone()
    inputs[7, 2] += 1e-6
    return module, loss, Records(inputs, records.targets)


def changed_label(module, loss, records):
    targets = records.targets.clone()
    targets[-1] = (targets[-1] + 1) % 2
    return module, loss, Records(records.inputs, targets)


def fewer_records(module, loss, records):
    return module, loss, Records(records.inputs[:-1], records.targets[:-1])


def other_module(module, loss, records):
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), loss, records


def other_loss(module, loss, records):
    return module, lambda outputs, targets: 2 * loss(outputs, targets), records


@pytest.mark.parametrize("change", [changed_data, changed_label, fewer_records, other_module, other_loss])
def test_anything_else_never_gets_this_runs_noise(tmp_path, change):
    run = interrupted(tmp_path, 5)
    before = (run / "ledger.jsonl").read_bytes()
    with pytest.raises(ResumeError, match="the same"):
        resume(run, *change(*parts()))
    assert (run / "ledger.jsonl").read_bytes() == before
    resume(run, *parts())
    assert verify(run).ok


def test_other_data_are_blamed_before_the_module(tmp_path):
    """Other data often come with another module; the data are what to put right."""
    run = interrupted(tmp_path, 5)
    with pytest.raises(ResumeError, match="the data must be the same"):
        resume(run, *other_loss(*changed_data(*parts())))


def test_the_same_records_in_another_form_do_not_get_it_either(tmp_path):
    """Sums of dense and of sparse records differ in their last bits."""
    run = interrupted(tmp_path, 5, kind="logistic")
    module, loss, records = parts("logistic")
    with pytest.raises(ResumeError, match="data must be the same"):
        resume(run, module, loss, SparseRecords.of(records))
    resume(run, module, loss, records)


def doubled(module):
    module.forward = lambda inputs: 2 * nn.functional.linear(inputs, module.weight, module.bias)
    return module


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Linear(5, 1), squared_loss),
        (nn.Linear(5, 1).double(), binary_loss),
        (nn.Linear(5, 1, bias=False), binary_loss),
        (doubled(nn.Linear(5, 1)), binary_loss),
        (nn.Sequential(nn.Linear(5, 1)), binary_loss),
        (nn.Linear(5, 1), lambda outputs, targets: 2 * binary_loss(outputs, targets)),
    ],
)
def test_a_linear_layer_is_known_by_its_shapes_and_its_loss(tmp_path, module, loss):
    """Neither is run to know it again; anything else is still something else."""
    records = Records(torch.randn(200, 5, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2)
    with pytest.raises(Interrupted):
        train(nn.Linear(5, 1), binary_loss, records, settings(), out=tmp_path / "run", callbacks=[stop_at(4)])
    with pytest.raises(ResumeError, match="the same"):
        resume(tmp_path / "run", module, loss, records)
    resume(tmp_path / "run", nn.Linear(5, 1), binary_loss, records)
    assert verify(tmp_path / "run").ok


def test_changed_settings_are_refused(tmp_path):
    run = interrupted(tmp_path, 5)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("learning_rate = 0.1", "learning_rate = 0.2"))
    with pytest.raises(ResumeError, match="learning_rate"):
        resume(run, *parts())


@pytest.mark.parametrize("name", ["config.toml", "environment.json"])
def test_files_that_would_be_published_changed_are_refused(tmp_path, name):
    """Also where no setting is changed: the closing line must not bind what was edited meanwhile."""
    run = interrupted(tmp_path, 5)
    (run / name).write_text((run / name).read_text() + "\n")
    with pytest.raises(ResumeError, match=name):
        resume(run, *parts())
    (run / name).unlink()
    with pytest.raises(DpsrmError, match=name):
        resume(run, *parts())


def test_a_file_edited_while_the_run_goes_on_is_named_afterwards(tmp_path):
    """The closing line binds what was written before the run began."""

    def edit(progress):
        if progress.step == 5:
            (tmp_path / "run" / "config.toml").write_text("")

    train(*parts(), settings(), out=tmp_path / "run", callbacks=[edit])
    assert "config.toml was changed" in verify(tmp_path / "run").problems[0]


def test_other_versions_or_another_cpu_are_refused(tmp_path, monkeypatch):
    run = interrupted(tmp_path, 5)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    with pytest.raises(ResumeError, match="ABACUS"):
        resume(run, *parts())


@pytest.mark.parametrize("where", [0.02, 0.3, 0.6, 0.99])
def test_a_checkpoint_with_one_changed_byte_is_refused(tmp_path, where):
    run = interrupted(tmp_path, 5)
    path = run / "private" / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(ResumeError):
        resume(run, *parts())


def test_a_ledger_that_lost_lines_is_refused(tmp_path):
    run = interrupted(tmp_path, 5)
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match="cut off"):
        resume(run, *parts())
    ledger.unlink()
    with pytest.raises(LedgerError):
        resume(run, *parts())


def test_two_processes_cannot_resume_one_run(tmp_path):
    run = interrupted(tmp_path, 5)
    from dpsrm.core.files import Chain

    chain, _ = Chain.reopen(run / "ledger.jsonl")
    with pytest.raises(LedgerError, match="another process"):
        resume(run, *parts())
    chain.close()
    resume(run, *parts())


def test_a_run_without_checkpoints_keeps_no_key(tmp_path):
    off = Performance(checkpoint_seconds=0, checkpoint_steps=0)
    run = interrupted(tmp_path, 5, performance=off)
    assert not (run / "private" / "keys.json").exists()
    with pytest.raises(ResumeError, match="overwrite"):
        resume(run, *parts())


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ResumeError, match="folder"):
        resume(tmp_path / "none", *parts())
    with pytest.raises(ResumeError, match="had not begun"):
        resume(tmp_path, *parts())


def test_a_copy_of_an_interrupted_run_replays_the_same(tmp_path):
    """Restored from a backup, a run makes the same releases again, if nothing changed (see test_noise_reuse.py)."""
    run = interrupted(tmp_path, 5)
    shutil.copytree(run, tmp_path / "copy")
    resume(run, *parts())
    resume(tmp_path / "copy", *parts(), moved=True)
    assert published(run) == published(tmp_path / "copy")


def test_dropout_draws_the_same_masks(tmp_path):
    def drop():
        module, loss, records = parts()
        return nn.Sequential(module[0], nn.Dropout(0.5), *module[1:]), loss, records

    torch.manual_seed(0)
    with pytest.raises(Interrupted):
        train(*drop(), settings(), out=tmp_path / "run", callbacks=[stop_at(5)])
    torch.manual_seed(1)
    resume(tmp_path / "run", *drop())
    train(*drop(), settings(), out=tmp_path / "whole")
    assert published(tmp_path / "run") == published(tmp_path / "whole")


def test_the_users_own_random_state_is_left_alone(tmp_path):
    before = torch.get_rng_state()
    whole(tmp_path)
    assert torch.equal(before, torch.get_rng_state())


def test_a_release_has_numbers_of_its_own():
    """No position of the sampling or noise stream serves two releases, and seeking again finds the same numbers."""
    streams, seen = Streams.secure(), set()
    first = {}
    for release in range(200):
        streams.seek(release)
        first[release] = streams.noise.standard_normal(), streams.sampling.integers(2**62)
        seen |= set(streams.noise.integers(2**62, size=50).tolist())
        seen |= set(streams.sampling.integers(2**62, size=50).tolist())
    assert len(seen) == 200 * 100
    for release in (150, 3):
        streams.seek(release)
        assert (streams.noise.standard_normal(), streams.sampling.integers(2**62)) == first[release]


def test_resume_is_public():
    assert dpsrm.resume is resume
    assert train_function is train
    assert issubclass(ResumeError, DpsrmError)
    assert not issubclass(ResumeError, InputError)
