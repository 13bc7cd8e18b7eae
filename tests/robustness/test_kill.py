"""A training killed at any moment and resumed is the training that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dpsrm

DRIVER = Path(__file__).with_name("kill_driver.py")
KILLS = int(os.environ.get("DPSRM_KILLS", "25"))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the driver reports; in a process of its own, since it forks."""
    package = str(Path(dpsrm.__file__).parents[1])
    command = [sys.executable, str(DRIVER), str(tmp_path_factory.mktemp("kill")), "--kills", str(KILLS), "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_was_killed_everywhere(told):
    assert told["kills"] >= KILLS
    assert sum(hits > 0 for hits in told["hits"].values()) >= 4


def test_never_fewer_charged_than_released_and_every_replay_is_identical(told):
    assert told["problems"] == []


def test_model_ledger_and_certificate_are_those_of_the_uninterrupted_run(told):
    assert told["same"]
