"""Train a module with a guarantee: plan, run, close the ledger, write the certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from dpsrm.accounting import Guarantee
from dpsrm.core.errors import need
from dpsrm.core.ledger import Ledger, read_ledger
from dpsrm.core.randomness import Streams
from dpsrm.data import as_records
from dpsrm.gradients import Objective, PerExampleLoss, engine
from dpsrm.methods import (
    Method,
    NonconvexPenalty,
    Output,
    RateSchedule,
    Regularised,
    Schedule,
    Scheduled,
    Stepper,
    make_output,
)
from dpsrm.training.certificate import prove, render
from dpsrm.training.config import Settings, settings_to_dict
from dpsrm.training.folder import RunFolder, sha256_of
from dpsrm.training.loop import Parts, Progress, Watcher, run_loop
from dpsrm.training.plan import Plan, make_plan
from dpsrm.training.settings import OPTIMIZERS
from dpsrm.training.toml import write_toml


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: the trained module, what it cost, and where everything lies."""

    module: nn.Module
    plan: Plan
    guarantee: Guarantee | None
    folder: RunFolder

    @property
    def epsilon(self) -> float:
        """The ε that the ledger proves; infinite for a run without privacy."""
        return float("inf") if self.guarantee is None else self.guarantee.epsilon


def train(
    module: nn.Module,
    loss: PerExampleLoss,
    data: Any,
    settings: Settings,
    *,
    out: Path | str,
    overwrite: bool = False,
    watch: Watcher | None = None,
    about: dict[str, Any] | None = None,
) -> Run:
    """Train `module` in place under `settings`, writing the run folder `out`.

    Args:
        module: any nn.Module without layers that mix examples; its parameters with requires_grad are trained.
        loss: (outputs, targets) → one loss per example.
        data: `Records`, a torch Dataset, or a pair of arrays or tensors (inputs, targets).
        settings: the promise, the method, the schedule.
        out: the run folder, which must not exist (or be a run, with `overwrite`).
        watch: called after every step, for progress bars; what it is told under `private` must not be published.
        about: further public facts for config.toml (which file, which preprocessing).

    Returns:
        The `Run`; `module` now holds the chosen output θ.

    Guarantee: everything in the run folder outside `private/` is (ε, δ)-DP as certificate.md says, if
    settings.privacy is given and no seed was.
    """
    records, objective = as_records(data), Objective.of(module, loss)
    start_P = objective.layout.read(module)
    streams = Streams.choose(settings.seed)
    method, schedule, stepper = resolve(settings, objective, start_P, streams=streams, n=len(records))
    plan = make_plan(method, schedule, n=len(records), privacy=settings.privacy)
    output = _output(settings, plan, streams)
    walk = plan.method.begin(start_P, schedule=schedule, stepper=stepper)
    folder = RunFolder(Path(out))
    folder.create(overwrite=overwrite)
    write_toml(folder.config, {**settings_to_dict(settings), **(about or {})})
    folder.write_environment()
    ledger = Ledger(folder.ledger, plan.header(private_randomness=streams.private))
    parts = Parts(
        walk=walk,
        objective=objective,
        engine=engine(settings.performance.engine, objective),
        records=records,
        streams=streams,
        ledger=ledger,
        output=output,
    )
    with (
        ledger,
        _threads(settings.performance.threads_for(objective.layout.size)),
        _journal(folder, schedule.steps) as note,
    ):
        theta_P, released = run_loop(plan, parts, watch=_both(note, watch))
        objective.layout.write(module, theta_P)
        return _finish(module, plan, folder, ledger, released=released, unit=settings.record)


def resolve(
    settings: Settings, objective: Objective, start_P: Tensor, *, streams: Streams, n: int
) -> tuple[Method, Schedule, Stepper]:
    """The method, schedule and step rule that the settings stand for."""
    training, method = settings.training, settings.method
    schedule = training.schedule(n, fixed=method.batch_for(n))
    schedule = replace(schedule, steps=method.rounds(schedule.steps, streams.output))
    stepper = OPTIMIZERS[training.optimizer](training.learning_rate, objective.layout, start_P)
    if training.decay != "constant" or training.warmup > 0:
        need(settings.theory is None, "theory mode has its own step sizes", decay=training.decay)
        rate = RateSchedule(decay=training.decay, warmup=training.warmup, steps=schedule.steps)
        stepper = Scheduled(stepper, rate)
    if settings.theory is not None:
        dimension = objective.layout.size
        method, schedule, stepper = settings.theory.resolve(training, settings.privacy, n=n, dimension=dimension)
    if training.regulariser > 0:
        penalty = NonconvexPenalty(training.regulariser)
        stepper = Regularised(stepper, penalty, gradient=penalty.gradient)
    return method, schedule, stepper


def _output(settings: Settings, plan: Plan, streams: Streams) -> Output:
    """Which θ to hand out: as the settings say, or the method's own choice."""
    name = settings.training.output or plan.method.output
    counted = name in ("random", "tail")
    need(
        not (counted and plan.method.adaptive),
        "how many updates an adaptive method makes is not known beforehand",
        output=name,
        remedy='use output = "last" or "ema"',
    )
    return make_output(name, steps=plan.schedule.steps, stream=streams.output)


def _finish(module: nn.Module, plan: Plan, folder: RunFolder, ledger: Ledger, *, released: int, unit: str) -> Run:
    """Write the model, close the ledger over its digest, and certify what the ledger on disk proves."""
    save_model(module, str(folder.model))
    ledger.close(released=released, model_sha256=sha256_of(folder.model))
    facts = read_ledger(folder.ledger)
    guarantee = prove(facts)
    folder.certificate.write_text(render(facts, guarantee, unit=unit))
    return Run(module=module, plan=plan, guarantee=guarantee, folder=folder)


@contextmanager
def _journal(folder: RunFolder, steps: int) -> Iterator[Watcher]:
    """Keep about 200 lines of exact training facts in `private/`."""
    every = max(1, steps // 200)
    with (folder.private / "progress.jsonl").open("w") as file:

        def note(progress: Progress) -> None:
            if progress.step % every == 0 or progress.step == steps:
                facts = {name: getattr(progress, name) for name in ("step", "steps", "direction_norm", "charged")}
                file.write(json.dumps(facts | {"private": asdict(progress.private)}) + "\n")

        yield note


def _both(first: Watcher, second: Watcher | None) -> Watcher:
    """A watcher that tells two."""

    def tell(progress: Progress) -> None:
        first(progress)
        if second is not None:
            second(progress)

    return tell


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Use `count` torch threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
