"""`make_private`: one's own loop, one's own model and optimizer, private."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from dpsrm.core.errors import ResumeError, need
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.isolation import Isolation
from dpsrm.data import Units
from dpsrm.gradients import Layout, ModelLosses, PerExampleLoss
from dpsrm.methods import Method
from dpsrm.training.config import Settings
from dpsrm.training.loader import PrivateLoader
from dpsrm.training.network_rule import network_steps
from dpsrm.training.own_loop import PrivateTraining
from dpsrm.training.prepare import prepare
from dpsrm.training.private_arguments import (
    given_losses,
    given_method,
    given_records,
    given_sizes,
    given_stepper,
    need_known,
)
from dpsrm.training.ranks import lend, strategy
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.reopen import reopen
from dpsrm.training.settings import OWN, Performance, Privacy, Training
from dpsrm.training.statement import Statement
from dpsrm.training.train import begin
from dpsrm.training.untouched import tell_stepped


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
    moved: bool = False,
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
        moved: as in `resume`.
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
    records = given_records(data_loader, data)
    chosen = given_method(method, max_grad_norm, max_diff_norm, options)
    n = len(records) if unit is None else len(Units.of(unit))
    need(data_loader is None or data_loader.batch_size is not None, "the data_loader must have a batch_size")
    b, each = given_sizes(chosen, n, data_loader.batch_size if data_loader is not None else batch_size)
    need(epochs is None or steps is None, "give epochs or steps, not both", epochs=epochs, steps=steps)
    lengths: tuple[Any, ...] = epochs, steps
    whole = all(count is None or (isinstance(count, Integral) and int(count) >= 1) for count in lengths)
    need(whole, "epochs and steps must be 1 or more, and whole", epochs=epochs, steps=steps)
    if epochs is None and steps is None:
        steps = network_steps(n, n if b is None else b)
    total = steps if epochs is None else epochs * each
    need_known(adjacency=adjacency, sampling=sampling, isolation=isolation)
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
    stepper, name = given_stepper(optimizer, model, total or 1)
    preparer = partial(prepare, model, given_losses(losses), records, stepper=stepper, unit=unit, lending=lending)
    if not resume:
        tell_stepped(optimizer)
    run = _run(settings, preparer, model, out, resume=resume, moved=moved, overwrite=overwrite, optimizer=name)
    loader = PrivateLoader(run, batches=each if steps is None else steps, like=data_loader)
    return PrivateTraining(run, loader, optimizer)


def _run(
    settings: Settings,
    preparer: Any,
    model: nn.Module,
    out: Path | str | None,
    *,
    resume: bool,
    moved: bool,
    overwrite: bool,
    optimizer: dict[str, Any],
) -> RecordedRun:
    """A new run in its folder, or the one that is there."""
    if resume:
        if out is None:
            raise ResumeError("to resume, give the run folder as out")
        size, lending = Layout.of(model).size, preparer.keywords["lending"]
        run = reopen(Path(out), preparer, parameters=size, lending=lending, moved=moved)
        if run.prepared.settings != settings:
            run.close()
            raise ResumeError("the settings must be the same as when the run began: see its config.toml")
        return run
    path = Path(out) if out is not None else Path("runs") / f"private-{datetime.now():%Y%m%d-%H%M%S-%f}"
    about = {"optimizer": optimizer}
    return begin(settings, preparer, path, overwrite=overwrite, about=about, lending=preparer.keywords["lending"])
