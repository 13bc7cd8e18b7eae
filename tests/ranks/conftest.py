"""Scenarios are run once for all tests of a file."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpsrm

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory):
    """What a scenario saw. All that the chosen tests ask for run at once, in one process of their own, which forks."""
    folder = tmp_path_factory.mktemp("ranks")
    tests = [item.function for item in request.session.items if item.path == request.path]
    names = sorted({name for test in tests for name in re.findall(r'ran\("(\w+)"\)', inspect.getsource(test))})
    paths = os.pathsep.join([str(Path(dpsrm.__file__).parents[1]), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "driver.py", folder, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr

    def run(name):
        return json.loads((folder / f"{name}.json").read_text())

    run.folder = folder
    return run
