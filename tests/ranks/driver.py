"""Run scenarios in a process of its own, since it forks: `driver.py FOLDER NAME…` writes what was seen as JSON."""

import importlib
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from ranks import fully_sharded, scenarios, stops
from ranks.scenarios import settings, trained

SCENARIOS = {**scenarios.SCENARIOS, **fully_sharded.SCENARIOS, **stops.SCENARIOS}

if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(SCENARIOS)
    torch.set_num_threads(1)
    if any(name in fully_sharded.SCENARIOS for name in names):
        importlib.import_module("torch.distributed.fsdp")  # and what it imports when it is first used
        importlib.import_module("torch._dynamo")
    trained(folder / "warm", settings(steps=2))  # so that not every rank has to import and compile
    trained(folder / "warm linear", settings(steps=2), module=nn.Linear(6, 3))
    for name in names:
        start = time.monotonic()
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(SCENARIOS[name](folder / name)))
        sys.stderr.write(f"{name}: {time.monotonic() - start:.1f} s\n")
