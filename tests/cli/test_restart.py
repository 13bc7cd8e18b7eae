"""After torchrun restarted a rank, `dpsrm train` goes on with its own run, and with no other."""

import pytest

from dpsrm.cli import job
from dpsrm.core.errors import DpsrmError
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import recorded

SETTINGS = ["--target", "y", "--classes", "0,1", "--epsilon", 5, "--delta", 1e-3, "--method", "sgd", "--seed", 1]
SIZES = ["--set", "training.steps=12", "--set", "training.batch=10", "--set", "performance.checkpoint_steps=5"]


class Killed(DpsrmError):
    """Stands for what ends a process."""


@pytest.fixture
def command(dpsrm, tmp_path):
    rows = [f"{i % 7},{i % 2}" for i in range(60)]
    (tmp_path / "x.csv").write_text("\n".join(["a,y", *rows]) + "\n")

    def run(*more):
        return dpsrm("train", "--data", tmp_path / "x.csv", *SETTINGS, *SIZES, "--out", tmp_path / "run", *more)

    return run


@pytest.fixture
def stopped(command, monkeypatch, tmp_path):
    """A run that was killed before its end."""

    def die(*_, **__):
        raise Killed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(recorded.RecordedRun, "finish", die)
        assert command().code == 2
    assert not read_ledger(tmp_path / "run" / "ledger.jsonl").closed
    return tmp_path / "run"


@pytest.fixture
def restarted(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")


def test_a_restarted_run_goes_on(stopped, restarted, command):
    assert command().code == 0
    assert verify(stopped).ok
    again = command()
    assert again.code == 2
    assert "was finished before this restart" in again.stderr


def test_without_a_restart_a_folder_that_exists_is_refused(stopped, command):
    assert "must not exist yet" in command().stderr


def test_a_run_of_other_settings_is_not_gone_on_with(stopped, restarted, command):
    assert "must not exist yet" in command("--set", "training.steps=13").stderr


def test_a_run_that_charged_and_cannot_be_resumed_is_not_begun_again(stopped, restarted, command):
    (stopped / "private" / "checkpoint.safetensors").unlink()
    before = (stopped / "ledger.jsonl").read_bytes()
    assert "must not exist yet" in command().stderr
    assert (stopped / "ledger.jsonl").read_bytes() == before


def test_a_run_that_had_not_begun_is_begun_again(stopped, restarted, command):
    (stopped / "private" / "checkpoint.safetensors").unlink()
    (stopped / "ledger.jsonl").unlink()
    assert command().code == 0
    assert verify(stopped).ok


def test_a_restarted_rank_finds_the_folder_by_the_same_name(monkeypatch):
    """Named after the time at which torchrun, the parent process, started; it did not start just now."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    first = job.default_out("x")
    monkeypatch.setattr(job, "datetime", type("Later", (job.datetime,), {"now": classmethod(lambda cls: cls.max)}))
    assert job.default_out("x") == first
