"""A training killed at any moment and resumed is the training that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dpsrm

DRIVER = Path(__file__).with_name("kill_driver.py")
KILLS = int(os.environ.get("DPSRM_KILLS", "25"))


def test_killed_at_any_moment_and_resumed_it_is_the_run_that_was_never_killed(tmp_path):
    """In a process of its own, since it forks: every replay identical, charged ≥ released, `verify` content."""
    environment = {**os.environ, "PYTHONPATH": str(Path(dpsrm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), str(tmp_path), "--kills", str(KILLS), "--seed", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == [], done.stderr
    assert told["kills"] >= KILLS
    assert sum(hits > 0 for hits in told["hits"].values()) >= 4
    assert told["same"]
