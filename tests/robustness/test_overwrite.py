"""One process at a time has a run folder, `--overwrite` and `--resume` included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dpsrm

DRIVER = Path(__file__).with_name("overwrite_driver.py")


def test_one_process_at_a_time_has_a_run_folder(tmp_path):
    """In a process of its own, since it forks."""
    environment = {**os.environ, "PYTHONPATH": str(Path(dpsrm.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), str(tmp_path), "--races", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 5 <= told.pop("won") <= 15
    assert told == {
        "refused": True,
        "untouched": True,
        "finished": True,
        "after_kill": True,
        "inner": True,
        "races": 5,
        "lost_all": 0,
        "broken": 0,
        "bad_runs": 0,
    }, done.stderr
