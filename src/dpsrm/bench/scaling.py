"""What a step costs as records and parameters grow: `dpsrm bench scaling`.

Records: one memory-mapped file of n × 8 bytes; smaller n are the beginning of the same file, so that all of it is in
the page cache. Parameters: an MLP of two hidden layers. In a round every size runs once; medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsrm.bench.interleaved import TRACK, quiet
from dpsrm.bench.memory import resident
from dpsrm.core.secret import Streams
from dpsrm.data import as_records
from dpsrm.gradients import multiclass_loss
from dpsrm.methods import Srm
from dpsrm.runs.book import MemoryBook
from dpsrm.training.checkpoint import record_bytes
from dpsrm.training.config import Settings
from dpsrm.training.prepare import prepare
from dpsrm.training.settings import Performance, Privacy, Training
from dpsrm.training.step import Step
from dpsrm.training.summing import read

FEATURES = 8
STAGES = ("passes and clipping", "noise", "update")


def settings(batch: int, steps: int = 10**6) -> Settings:
    """A run that is long enough to be measured anywhere in it; seeded, and so not private."""
    return Settings(
        privacy=Privacy(epsilon=1e6, delta=1e-9, noise_multiplier=1.0),
        method=Srm(),
        training=Training(batch=batch, steps=steps, learning_rate=1e-3, output="last"),
        performance=Performance(threads=1, checkpoint_seconds=0),
        seed=1,
    )


def network(inputs: int, width: int) -> nn.Module:
    """Two hidden layers of one width, ten classes."""
    torch.manual_seed(0)
    layers = nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)
    return nn.Sequential(*layers)


def write_file(path: Path, n: int) -> None:
    """n records of 8 random bytes and a label, by blocks, if they are not there yet."""
    if path.exists() and path.stat().st_size == n * (FEATURES + 1):
        return
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, n * FEATURES, 2**24):
            file.write(rng.bytes(min(2**24, n * FEATURES - start)))
        for start in range(0, n, 2**24):
            file.write(rng.integers(0, 10, min(2**24, n - start), dtype=np.uint8).tobytes())


def _opened(path: Path, n: int, whole: int) -> tuple[Any, Any]:
    """The first n records of the file, mapped; as fractions, which is a conversion of the drawn rows only."""
    x = np.memmap(path, dtype=np.uint8, mode="r", shape=(n, FEATURES))
    y = np.memmap(path, dtype=np.uint8, mode="r", shape=(n,), offset=whole * FEATURES)
    return x, y


class _Scaled(nn.Module):
    """Bytes as numbers in [0, 1], then a network."""

    def __init__(self, rest: nn.Module) -> None:
        """What comes after the scaling."""
        super().__init__()
        self.rest = rest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and go on."""
        outputs: torch.Tensor = self.rest(x / 255)
        return outputs


def _step(module: nn.Module, data: Any, batch: int) -> tuple[Step, float]:
    """A step that could go on for ever, and the seconds that planning it took."""
    start = time.process_time()
    prepared = prepare(module, multiclass_loss, data, settings(batch), Streams.seeded(1))
    return Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False))), time.process_time() - start


def records_rows(folder: Path, sizes: Iterable[int], *, batch: int, rounds: int) -> list[dict[str, Any]]:
    """One row per n: milliseconds of a whole step, of its draw and of reading it; planning; fingerprint; memory."""
    sizes, path = sorted(sizes), folder / "scaling.bytes"
    write_file(path, sizes[-1])
    steps, rows = {}, {}
    for n in sizes:
        data = as_records(_opened(path, n, sizes[-1]))
        before = resident("RssAnon")
        step, planned = _step(_Scaled(network(FEATURES, 64)), data, batch)
        began = time.process_time()
        Streams.seeded(1).tag(record_bytes(data))
        rows[n] = {"what": "records", "n": n, "batch": batch, "plan_s": planned, "fingerprint_s": 0.0}
        rows[n]["fingerprint_s"] = time.process_time() - began
        steps[n] = step
        with step.running():
            for _ in range(3):
                step()
        rows[n]["memory_mb"] = (resident("RssAnon") - before) / 2**20
    seen = _interleaved({n: partial(_parts, step) for n, step in steps.items()}, rounds)
    return [{**rows[n], **seen[n]} for n in sizes]


def _parts(step: Step) -> dict[str, float]:
    """Seconds of one step, of a draw, and of reading what was drawn."""
    times = {}
    with step.running():
        times["step"], _ = _timed(step)
        times["draw"], drawn = _timed(step.draw)
        times["read"], _ = _timed(partial(read, step.prepared.records, drawn.which, drawn.seed))
    return times


def parameter_rows(sizes: Iterable[int], *, batch: int, rounds: int) -> list[dict[str, Any]]:
    """One row per number of parameters: two plain passes, the whole step, and its stages."""
    return [_parameter_row(size, batch, rounds) for size in sizes]


def _parameter_row(size: int, batch: int, rounds: int) -> dict[str, Any]:
    """The MLP whose number of parameters is next to `size`."""
    inputs = 784 if size > 10**5 else 64
    width = round((-(inputs + 12) + ((inputs + 12) ** 2 + 4 * size) ** 0.5) / 2)
    module = network(inputs, width)
    x, y = torch.randn(4 * batch, inputs), torch.randint(0, 10, (4 * batch,))
    step, _ = _step(module, (x, y), batch)
    count = step.prepared.objective.layout.size

    def plain() -> None:
        drawn = len(step.draw().indices)  # as many records as the step will look at
        _plain_passes(module, x[:drawn], y[:drawn])

    with step.running():
        step()  # at the first step both points are one
        quiet(plain)
        seen = _interleaved({"plain": lambda: {"plain": _timed(plain)[0]}, "step": partial(_stages, step)}, rounds)
    return {"what": "parameters", "parameters": count, "batch": batch, **seen["plain"], **seen["step"]}


def _plain_passes(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Forward and backward, twice: what training at two points costs without privacy."""
    for _ in range(2):
        module.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(x), y))


def _stages(step: Step) -> dict[str, float]:
    """Seconds of a step and of its stages, by watching the step call them."""
    times: dict[str, float] = {}
    sums, airlock, walk = step.sums, step.airlock, step.prepared.walk
    kept = sums.total, airlock.release, walk.tell
    for name, (owner, method) in zip(STAGES, ((sums, "total"), (airlock, "release"), (walk, "tell")), strict=True):
        setattr(owner, method, _watched(getattr(owner, method), name, times))
    try:
        whole, _ = _timed(step)
    finally:
        sums.total, airlock.release, walk.tell = kept  # type: ignore[method-assign]
    return {"step": whole, **times}


def _watched(function: Callable[..., Any], name: str, times: dict[str, float]) -> Callable[..., Any]:
    """The function, its processor seconds kept under a name."""

    def call(*args: Any, **kwargs: Any) -> Any:
        times[name], found = _timed(partial(function, *args, **kwargs))
        return found

    return call


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and what it gave."""
    start = time.process_time()
    found = function()
    return time.process_time() - start, found


def _interleaved(calls: dict[Any, Callable[[], dict[str, float]]], rounds: int) -> dict[Any, dict[str, float]]:
    """Medians in milliseconds of what each call measures; in each round every call is made once."""
    seen: dict[Any, list[dict[str, float]]] = {name: [] for name in calls}
    for _ in TRACK.get()(range(rounds), rounds, "measuring"):
        for name, call in calls.items():
            seen[name].append(call())
    return {
        name: {f"{key}_ms": 1e3 * statistics.median(each[key] for each in found) for key in found[0]}
        for name, found in seen.items()
    }
