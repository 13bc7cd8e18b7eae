"""How fast is one's own loop made private? `make_private` with DP-SGD and DP-SRM against Opacus' hooks, interleaved.

    dpsrm bench loop --batch 512 --records 60000

Made-up images of 28 × 28 in an ordinary DataLoader, the paper's MNIST network, Adam, Poisson sampling on both sides. A
round is the next few batches of each loop, with everything a loop does: reading the drawn records, gradients, noise,
the optimizer, and on our side ledger, log and checkpoints. Times are processor seconds of one thread; a ratio is the
median over rounds of the two times' quotient. Setting up (calibration, Opacus' wrappers) is not timed.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpsrm.bench.interleaved import interleaved, quiet
from dpsrm.bench.models import build, pair_losses
from dpsrm.core.errors import need_extra
from dpsrm.training import make_private

GOALS = {"sgd": 0.75, "srm": 1.15}
"""The most that a method's time may be, as a share of Opacus'."""
_NOISE, _CLIP, _RATE = 1.0, 1.0, 1e-3
_EPSILON, _DELTA = 50.0, 1e-5


def _images(records: int, batch: int) -> tuple[nn.Module, DataLoader[Any]]:
    """The network, and a loader of random images with random classes."""
    made = build("cnn4", records)
    return made.module, DataLoader(TensorDataset(*made.batch), batch_size=batch, shuffle=True)


def _ours(method: str, records: int, batch: int, *, steps: int, held: ExitStack) -> Iterator[None]:
    """Our loop, one batch each time it is asked."""
    module, loader = _images(records, batch)
    private = held.enter_context(
        make_private(
            model=module,
            losses=pair_losses,
            optimizer=torch.optim.Adam(module.parameters(), lr=_RATE),
            data_loader=loader,
            epsilon=_EPSILON,
            delta=_DELTA,
            noise_multiplier=_NOISE,
            max_grad_norm=_CLIP,
            steps=steps,
            method=method,
            out=Path(held.enter_context(tempfile.TemporaryDirectory())) / "run",
        )
    )
    for drawn in private.data_loader:
        private.step(drawn)
        yield


def _opacus(records: int, batch: int) -> Iterator[None]:
    """Opacus' loop, one batch each time it is asked."""
    need_extra("opacus", extra="compare")
    from opacus import PrivacyEngine

    module, loader = _images(records, batch)
    optimizer = torch.optim.Adam(module.parameters(), lr=_RATE)
    private: Any = PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=loader, noise_multiplier=_NOISE, max_grad_norm=_CLIP
    )
    module, optimizer, loader = private
    criterion = nn.CrossEntropyLoss()
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.autograd.backward(criterion(module(inputs), targets))
            optimizer.step()
            yield


def _some(loop: Iterator[None], batches: int) -> None:
    """The next batches of a loop."""
    for _ in range(batches):
        next(loop)


def run(records: int = 60_000, batch: int = 512, batches: int = 20, rounds: int = 5) -> dict[str, Any]:
    """Measure; see the module's first lines for how. Opacus is left out if it is not installed: `failures` says so."""
    torch.set_num_threads(1)
    with ExitStack() as held:
        steps = batches * (rounds + 1)
        loops = {name: _ours(name, records, batch, steps=steps, held=held) for name in GOALS}
        loops["opacus"] = _opacus(records, batch)
        chunks: dict[str, Callable[[], None]] = {}
        failures: dict[str, str] = {}
        for name, loop in loops.items():
            try:
                quiet(partial(_some, loop, batches))
                chunks[name] = partial(_some, loop, batches)
            except ImportError as error:
                failures[name] = f"{error}; pip install opacus"
        seconds = interleaved(chunks, rounds)
    found = {name: _quotients(seconds, name) for name in GOALS}
    return {
        "records": records,
        "batch": batch,
        "batches_per_round": batches,
        "rounds": rounds,
        "ratio_to_opacus": {name: round(statistics.median(q), 3) if q else None for name, q in found.items()},
        "range": {name: [round(min(q), 3), round(max(q), 3)] if q else None for name, q in found.items()},
        "goal": GOALS,
        "ms_per_batch": {n: round(1e3 * statistics.median(s) / batches, 1) for n, s in seconds.items()},
        "failures": failures,
    }


def _quotients(seconds: dict[str, list[float]], name: str) -> list[float]:
    """Our time ÷ Opacus', round by round."""
    return [ours / theirs for ours, theirs in zip(seconds[name], seconds.get("opacus", []), strict=False)]
