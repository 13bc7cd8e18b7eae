"""How much faster several ranks are than one process: CNN4, DP-SRM, one thread each, in turns on the same machine.

The workers wait between their turns. Beside the wall clock stands processor time per rank, which other programs on the
machine disturb less: 1 process ÷ the busiest rank is the speed-up where every rank has a core of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dpsrm.bench.interleaved import TRACK
from dpsrm.core.events import Scheme
from dpsrm.core.secret import Streams
from dpsrm.experiments.networks import cnn4
from dpsrm.gradients import multiclass_loss
from dpsrm.mechanisms.wire import Wire
from dpsrm.methods import Srm
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Performance, Privacy, Settings, Training
from dpsrm.training.prepare import prepare
from dpsrm.training.step import Step

_RECORDS = 4096


def run(ranks: int, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Median seconds of `steps` steps by one process and by `ranks`, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        teams = {world: [_Worker(rank, world, batch, Path(folder)) for rank in range(world)] for world in (1, ranks)}
        turns: dict[int, list[list[dict[str, float]]]] = {world: [] for world in teams}
        try:
            for turn in TRACK.get()(range(rounds + 1), rounds + 1, "measuring"):
                for world, team in teams.items():
                    said = _turn(team, steps)
                    turns[world] += [said] if turn else []  # the first turn is thrown away
        finally:
            for worker in [worker for team in teams.values() for worker in team]:
                worker.process.kill()
                worker.process.wait()
    return _summary(turns, ranks=ranks, batch=batch, steps=steps)


def _turn(team: list[_Worker], steps: int) -> list[dict[str, float]]:
    """Let a team make some steps."""
    for worker in team:
        worker.say(steps)
    return [worker.hear() for worker in team]


def _summary(turns: dict[int, list[list[dict[str, float]]]], *, ranks: int, **sizes: int) -> dict[str, Any]:
    """Medians over the turns."""
    wall = {world: statistics.median(max(each["wall"] for each in turn) for turn in turns[world]) for world in turns}
    cpu = {world: statistics.median(max(each["cpu"] for each in turn) for turn in turns[world]) for world in turns}
    talk = statistics.median(max(each["talk"] for each in turn) for turn in turns[ranks])
    return {
        "ranks": ranks,
        **sizes,
        "seconds": {str(world): round(value, 4) for world, value in wall.items()},
        "processor_seconds": {str(world): round(value, 4) for world, value in cpu.items()},
        "speed_up": round(wall[1] / wall[ranks], 2),
        "speed_up_by_processor_time": round(cpu[1] / cpu[ranks], 2),
        "processor_share_of_talking": round(talk / cpu[ranks], 3),
    }


class _Worker:
    """A process that makes steps when it is told to."""

    def __init__(self, rank: int, world: int, batch: int, folder: Path) -> None:
        """Start it."""
        told = map(str, (rank, world, batch, folder / f"{world}"))
        command = [sys.executable, "-m", "dpsrm.bench.ranks", *told]
        lonely = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **lonely}
        )

    def say(self, steps: int) -> None:
        """Make so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, float]:
        """How long they took."""
        assert self.process.stdout is not None
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found


def _step(batch: int) -> Step:
    """A run of CNN4 on made-up images that could begin."""
    torch.manual_seed(0)
    module = cnn4()
    images, labels = torch.rand(_RECORDS, 1, 28, 28), torch.randint(10, (_RECORDS,))
    settings = Settings(
        privacy=Privacy(epsilon=1e6, delta=1e-5, noise_multiplier=1.0, accountant="rdp", sampling=Scheme.WOR),
        method=Srm(),
        training=Training(batch=batch, steps=100_000, learning_rate=1e-3, output="last"),
        performance=Performance(threads=1),
        seed=1,
    )
    prepared = prepare(module, multiclass_loss, (images, labels), settings, Streams.choose(1))
    return Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))


class _Talk:
    """Processor time that goes into what ranks say to each other."""

    def __init__(self) -> None:
        """Watch the one function that sums travel by."""
        self.seconds, real = 0.0, Wire.swap

        def swap(wire: Wire, pieces: Any, sizes: Any) -> Any:
            start = time.process_time()
            found = real(wire, pieces, sizes)
            self.seconds += time.process_time() - start
            return found

        setattr(Wire, "swap", swap)  # noqa: B010


def _work(rank: int, world: int, batch: int, store: str) -> None:
    """Make steps as long as somebody asks for them."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    talk, step = _Talk(), _step(batch)
    with step.running():
        for line in sys.stdin:
            talk.seconds, wall, cpu = 0.0, time.perf_counter(), time.process_time()
            for _ in range(int(line)):
                step()
            said = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "talk": talk.seconds}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
