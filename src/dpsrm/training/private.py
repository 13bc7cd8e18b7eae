"""`make_private`: one's own loop, one's own model and optimizer, private."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from dpsrm.core.errors import ResumeError, need, need_numbers
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.isolation import Isolation
from dpsrm.data import RecordSource, Units, as_records
from dpsrm.gradients import STANDARD_LOSSES, Layout, ModelLosses, PerExampleLoss
from dpsrm.gradients.shards import is_sharded
from dpsrm.methods import CorrectedAdam, Method, OptimizerStep, Stepper, method_class
from dpsrm.training.asked import AskedLog
from dpsrm.training.config import Settings
from dpsrm.training.loader import PrivateLoader, records_of
from dpsrm.training.network_rule import network_batch, network_rate, network_steps
from dpsrm.training.own_loop import PrivateTraining
from dpsrm.training.prepare import prepare
from dpsrm.training.ranks import lend, strategy
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.settings import OWN, Performance, Privacy, Training
from dpsrm.training.start import begin, reopen
from dpsrm.training.statement import Statement


def make_private(
    *,
    model: nn.Module,
    losses: PerExampleLoss | ModelLosses,
    epsilon: float,
    delta: float,
    optimizer: torch.optim.Optimizer | None = None,
    data_loader: DataLoader[Any] | None = None,
    data: Any = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    method: str | Method = "srm",
    max_grad_norm: float = 1.0,
    max_diff_norm: float = 0.5,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    sampling: Scheme | str = Scheme.POISSON,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    accountant: str = "pld",
    noise_multiplier: float | None = None,
    isolation: Isolation | str = Isolation.ALONE,
    output: str = "last",
    performance: Performance | None = None,
    record: str = "one record",
    budget: str | None = None,
    statement: Statement | None = None,
    seed: int | None = None,
    unit: Any = None,
    rows_per_unit: int | None = None,
    **options: Any,
) -> PrivateTraining:
    """Make one's own training loop private: the library draws, clips, charges and adds noise; the loop stays.

        private = make_private(model=…, losses=…, optimizer=…, data_loader=…, epsilon=1, delta=1e-5, epochs=5)
        for epoch in range(5):
            for batch in private.data_loader:
                private.step(batch)
            validate(model)
        run = private.finish()

    Args:
        model: the module; it moves after every step. No wrapper, no renamed keys.
        losses: (model, batch) → one loss per example, which must run the model it is given; or a loss of torch with
            reduction="none" (a module, or `partial(F.cross_entropy, reduction="none")`), for batches (inputs, targets).
        optimizer: any torch optimizer over the model's trainable parameters, except those that need a closure; None:
            Adam that knows the noise, its learning rate chosen from the number of parameters and steps.
        epsilon, delta: the promise. The noise is calibrated to it (unless `noise_multiplier` is given).
        data_loader: a DataLoader; its dataset, collate function, workers and batch size (expected) are kept, its
            sampling is not.
        data, batch_size: instead of `data_loader`: arrays or a dataset, as in `train`; a batch size that is left out is
            a 32nd of the records, at least 512.
        epochs: passes of n/batch draws each, and `len(private.data_loader)` batches; or
        steps: how many draws in all, which `private.data_loader` gives in one go. Neither: about ten passes, at least
            300 steps.
        method: the name of a method, whose own settings may follow as `options`, or a method.
        max_grad_norm, max_diff_norm: C1, and C2 where the method has one.
        out: the run folder; without it one under runs/ is named after the time.
        resume: go on with the interrupted run in `out`.
        output: which θ `finish` leaves in the model: the last one, or "tail", "ema", "random".
        statement: what the operator says in the report.
        unit, rows_per_unit: whose each record is, one id per record, if a person is to be protected with all their
            records, of which at most so many count at a time (8): see docs/whose-privacy.md. Batches are then
            `Bundles` of persons; losses see one person's rows as a batch.
        seed: research only: reproducible, not private.

    Returns:
        The `PrivateTraining`.

    Guarantee: everything in the run folder outside `private/`, and every θ the model takes, is (ε, δ)-DP as the
    certificate says, if what the loop does besides (validation, stopping, schedules) depends on private records only
    through what was released.

    >>> model = nn.Linear(3, 1)
    >>> private = make_private(
    ...     model=model,
    ...     losses=lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]) ** 2,
    ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     data=(torch.eye(100)[:, :3], torch.ones(100)), batch_size=20,
    ...     epsilon=2.0, delta=1e-5, epochs=2, out=getfixture("tmp_path") / "run",
    ... )
    >>> for epoch in range(2):
    ...     for batch in private.data_loader:
    ...         progress = private.step(batch)
    >>> private.finish().epsilon <= 2.0
    True
    """
    records = _records(data_loader, data)
    chosen = _method(method, max_grad_norm, max_diff_norm, options)
    n = len(records) if unit is None else len(Units.of(unit))
    need(data_loader is None or data_loader.batch_size is not None, "the data_loader must have a batch_size")
    b, each = _sizes(chosen, n, data_loader.batch_size if data_loader is not None else batch_size)
    need(epochs is None or steps is None, "give epochs or steps, not both", epochs=epochs, steps=steps)
    whole = all(count is None or (isinstance(count, int) and count >= 1) for count in (epochs, steps))
    need(whole, "epochs and steps must be 1 or more, and whole", epochs=epochs, steps=steps)
    if epochs is None and steps is None:
        steps = network_steps(n, n if b is None else b)
    total = steps if epochs is None else epochs * each
    _need_known(adjacency=adjacency, sampling=sampling, isolation=isolation)
    settings = Settings(
        privacy=Privacy(
            epsilon=epsilon,
            delta=delta,
            adjacency=Adjacency(adjacency),
            sampling=Scheme(sampling),
            accountant=accountant,
            noise_multiplier=noise_multiplier,
            isolation=Isolation(isolation),
            unit=None if unit is None else "id",
            rows_per_unit=rows_per_unit,
        ),
        method=chosen,
        training=Training(batch=b, steps=total, optimizer=OWN, output=output),
        performance=performance or Performance(),
        seed=seed,
        record=record,
        budget=budget,
        statement=statement,
    )
    lending = lend(model)
    strategy(lending).align(model)
    stepper, name = _stepper(optimizer, model, total or 1)
    preparer = partial(prepare, model, _losses(losses), records, stepper=stepper, unit=unit, lending=lending)
    run = _run(settings, preparer, model, out, resume=resume, overwrite=overwrite, optimizer=name)
    asked = AskedLog(run.folder.private / "asked.jsonl", run.prepared.streams, run.strategy)
    loader = PrivateLoader(run, batches=each if steps is None else steps, like=data_loader)
    return PrivateTraining(run, asked, loader)


def _stepper(optimizer: torch.optim.Optimizer | None, model: nn.Module, steps: int) -> tuple[Stepper, dict[str, Any]]:
    """The user's optimizer, or the library's choice of one, and what config.toml says of it."""
    if optimizer is None:
        rate = network_rate(steps, Layout.of(model).size)
        return CorrectedAdam(rate), {"name": "dp-adam", "lr": rate}
    need(
        not any(p.requires_grad and is_sharded(p) for p in model.parameters()),
        "an optimizer of one's own moves whole parameters",
        remedy="leave the trained ones whole: fully_shard(…, ignored_params=…); or leave optimizer out",
    )
    values = {name: value for name, value in optimizer.defaults.items() if isinstance(value, (bool, int, float, str))}
    return OptimizerStep.own(optimizer, model, Layout.of(model)), {"name": type(optimizer).__name__, **values}


def _records(data_loader: DataLoader[Any] | None, data: Any) -> RecordSource:
    """The records of a loader, or of arrays."""
    need((data_loader is None) != (data is None), "give data_loader, or data and batch_size")
    return as_records(data) if data_loader is None else records_of(data_loader)


_KNOWN = {
    "adjacency": [each.value for each in Adjacency],
    "sampling": [each.value for each in Scheme],
    "isolation": [each.value for each in Isolation],
}


def _need_known(**given: str) -> None:
    """Refuse names that mean nothing."""
    for name, value in given.items():
        need(value in _KNOWN[name], f"{name} must be one of {', '.join(_KNOWN[name])}", got=value)


def _method(method: str | Method, max_grad_norm: float, max_diff_norm: float, options: dict[str, Any]) -> Method:
    """The method with its clips and its own settings."""
    need_numbers(max_grad_norm=max_grad_norm, max_diff_norm=max_diff_norm)
    if isinstance(method, Method):
        need(not options, "a method that is given whole takes no further settings", given=sorted(options))
        chosen = method
    else:
        kind = method_class(method)
        known = getattr(kind, "__dataclass_fields__", {})
        clips = {"max_grad_norm": max_grad_norm, "max_diff_norm": max_diff_norm}
        given = {**{name: value for name, value in clips.items() if name in known}, **options}
        unknown = sorted(set(given) - set(known))
        need(not unknown, f"{method} takes {', '.join(known)}", unknown=unknown)
        chosen = kind(**given)
    need(not chosen.adaptive, f"{chosen.name} chooses its own step sizes and uses no optimizer", remedy="use train")
    return chosen


def _sizes(method: Method, n: int, batch_size: int | None) -> tuple[int | None, int]:
    """The batch to ask for (None: the method insists on one), and how many make a pass."""
    fixed = method.batch_for(n)
    size = network_batch(n) if batch_size is None else batch_size
    need_numbers(batch_size=size)
    b = fixed if fixed is not None else int(size)
    need(fixed is not None or b == size, "batch_size must be a whole number", batch_size=size)
    need(1 <= b <= n, "batch_size must lie between 1 and the number of records", batch_size=b, n=n)
    return (None if fixed is not None else b), max(1, round(n / b))


def _losses(losses: PerExampleLoss | ModelLosses) -> PerExampleLoss | ModelLosses:
    """A function is one of (model, batch); a loss of torch, or of ours, is one of (outputs, targets)."""
    need(callable(losses) or isinstance(losses, ModelLosses), "losses is a function of (model, batch)", losses=losses)
    named = losses.func if isinstance(losses, partial) else losses
    of_torch = isinstance(named, nn.Module) or getattr(named, "__module__", None) == F.__name__
    if of_torch or isinstance(losses, ModelLosses) or named in STANDARD_LOSSES:
        return losses
    return ModelLosses(losses)


def _run(
    settings: Settings,
    preparer: Any,
    model: nn.Module,
    out: Path | str | None,
    *,
    resume: bool,
    overwrite: bool,
    optimizer: dict[str, Any],
) -> RecordedRun:
    """A new run in its folder, or the one that is there."""
    if resume:
        if out is None:
            raise ResumeError("to resume, give the run folder as out")
        run = reopen(Path(out), preparer, parameters=Layout.of(model).size, lending=preparer.keywords["lending"])
        if run.prepared.settings != settings:
            run.close()
            raise ResumeError("the settings must be the same as when the run began: see its config.toml")
        return run
    path = Path(out) if out is not None else Path("runs") / f"private-{datetime.now():%Y%m%d-%H%M%S-%f}"
    about = {"optimizer": optimizer}
    return begin(settings, preparer, path, overwrite=overwrite, about=about, lending=preparer.keywords["lending"])
