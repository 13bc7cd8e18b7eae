"""Full and read-only disks: nothing is released that was not charged, and the error says what to do."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import DpsrmError, InputError, LedgerError
from dpsrm.core.events import Adjacency, PureRelease
from dpsrm.core.files import write_atomically
from dpsrm.runs import verify
from dpsrm.runs.ledger import Header, Ledger, read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, loss_for, resume, train

HEADER = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="rdp", private_randomness=True)


def test_a_full_disk_releases_nothing_uncharged(tmp_path):
    driver = Path(__file__).with_name("disk_driver.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(dpsrm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(driver), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["uncharged"] == 0
    assert told["other"] == []
    assert told["full"] == len(told["released"])
    assert max(told["released"]) > 5


def test_a_ledger_cut_off_by_a_full_disk_takes_nothing_more_and_can_be_read(tmp_path, monkeypatch):
    with Ledger(tmp_path / "ledger.jsonl", HEADER) as ledger:
        ledger.charge(PureRelease(epsilon=0.1), 1)
        real = os.write
        monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
        with pytest.raises(LedgerError, match="disk full"):
            ledger.charge(PureRelease(epsilon=0.1), 1)
        monkeypatch.undo()
        with pytest.raises(LedgerError, match="resume"):
            ledger.charge(PureRelease(epsilon=0.1), 1)
        assert ledger.spending.releases == 1
    assert read_ledger(tmp_path / "ledger.jsonl").spending.releases == 1


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(handle, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_read_only_place_is_named(tmp_path):
    with pytest.raises(InputError, match="choose another --out"):
        train(nn.Linear(2, 3), loss_for(3), (torch.zeros(9, 2), torch.zeros(9).long()), CHOSEN, out="/proc/run")


CHOSEN = Settings(
    privacy=Privacy(epsilon=50.0, delta=1e-5, noise_multiplier=2.0),
    training=Training(batch=4, steps=9),
    performance=Performance(checkpoint_steps=2),
)


def test_a_checkpoint_that_cannot_be_written_stops_the_run_and_the_last_one_resumes_it(tmp_path, monkeypatch):
    data = torch.randn(20, 2), torch.zeros(20).long()
    real, seen = os.write, []

    def fills_up(handle, content):
        seen.append(len(content))
        if len(seen) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, content)

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(DpsrmError, match="No space left"):
        train(nn.Linear(2, 3), loss_for(3), data, CHOSEN, out=tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run", nn.Linear(2, 3), loss_for(3), data)
    assert verify(tmp_path / "run").ok
