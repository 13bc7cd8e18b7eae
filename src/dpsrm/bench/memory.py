"""Peak memory of one variant of the estimator, in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from dpsrm.bench.interleaved import quiet
from dpsrm.bench.two_points import variant
from dpsrm.gradients.ghost.pool_kernels import largest, to_largest
from dpsrm.gradients.ghost.written import WrittenRows


def peak(name: str, model: str, batch: int, *, points: int = 2) -> float:
    """Peak memory of one variant in bytes, in a process of its own."""
    command = [sys.executable, "-m", "dpsrm.bench.memory", name, model, str(batch), str(points)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _peak_here(name: str, model: str, batch: int, points: int) -> int:
    """Peak memory of one variant in this process, above what the model and the batch need."""
    torch.set_num_threads(1)
    step = variant(name, model, batch, points=points)
    _load_kernels()
    Path("/proc/self/clear_refs").write_text("5")
    start = resident("VmRSS")
    for _ in range(3):
        quiet(step)
    return resident("VmHWM") - start


def _load_kernels() -> None:
    """Compiled passes over rows and images, and their compiler: some 60 MB, once in a process, whatever the model."""
    for points in (1, 2):
        rows = WrittenRows([torch.ones(1, 1)] * points)
        rows.square((0, 0))
        rows.weighted({(0, 0): torch.ones(1, dtype=torch.float64)}, slice(0, 1))
    image = np.ones((1, 2, 2), dtype=np.float32)
    windows = (2, 2), 1, 1
    largest(image, *windows, image[:, :1, :1])
    to_largest(image[:, :1, :1], image, image[:, :1, :1], *windows, image.copy())


def resident(field: str) -> int:
    """A size of this process in bytes, as Linux counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":  # one variant's peak memory, for `peak`
    sys.stdout.write(str(_peak_here(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
