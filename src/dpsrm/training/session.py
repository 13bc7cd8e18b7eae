"""One run under way in its folder: loop, checkpoints, and at the end model, closing line, certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from dpsrm.accounting import Guarantee
from dpsrm.core.chain import GENESIS
from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Spending
from dpsrm.core.ledger import Ledger, read_ledger
from dpsrm.training.certificate import prove, render
from dpsrm.training.checkpoint import Checkpoint, Pacemaker, write_checkpoint
from dpsrm.training.files import write_atomically
from dpsrm.training.folder import RunFolder, sha256_of
from dpsrm.training.loop import Keeper, Parts, Progress, Watcher, run_loop
from dpsrm.training.plan import Plan
from dpsrm.training.prepare import Prepared


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


@dataclass(frozen=True, kw_only=True)
class Session:
    """A prepared run and its folder; `facts` go into every checkpoint."""

    prepared: Prepared
    folder: RunFolder
    facts: dict[str, Any]

    def begin(self) -> None:
        """Write the first checkpoint, before there is a ledger."""
        nothing = Spending.of([], adjacency=self.prepared.plan.spending.adjacency)
        self._write(nothing, (0, GENESIS))

    def run(self, ledger: Ledger, *, watch: Watcher | None, after: Checkpoint | None = None) -> Run:
        """Loop to the end (from `after`, if the run was interrupted) and finish."""
        p, made = self.prepared, None if after is None else after.made
        parts = Parts.of(p, ledger, threads=self.facts["threads"], keep=self._keeper(ledger), made=made)
        steps = p.plan.schedule.steps
        with _journal(self.folder, steps, after=p.walk.time) as note:
            theta_P, released = run_loop(p.plan, parts, watch=_both(note, watch))
        p.objective.layout.write(p.objective.module, theta_P)
        _save_model(p.objective.module, self.folder)
        ledger.close(released=released, model_sha256=sha256_of(self.folder.model))
        return self.certify()

    def certify(self) -> Run:
        """Certify what the ledger on disk proves, then destroy the key: the run is finished."""
        p, folder = self.prepared, self.folder
        facts = read_ledger(folder.ledger)
        if sha256_of(folder.model) != facts.model_sha256:
            raise LedgerError(f"{folder.model} is not the model the ledger was closed with")
        try:
            load_model(p.objective.module, str(folder.model))
        except (SafetensorError, RuntimeError) as error:
            raise LedgerError(f"{folder.model} does not fit the module: {error}") from error
        guarantee = prove(facts)
        text = render(facts, guarantee, unit=p.settings.record)
        write_atomically(folder.certificate, text.encode())
        folder.forget()
        return Run(module=p.objective.module, plan=p.plan, guarantee=guarantee, folder=folder)

    def _keeper(self, ledger: Ledger) -> Keeper:
        """Writes checkpoints when they are due."""
        performance = self.prepared.settings.performance
        return Pacemaker(performance, lambda made: self._write(made, ledger.position))

    def _write(self, made: Spending, position: tuple[int, str]) -> None:
        """Write a checkpoint of the walk and the output as they stand."""
        p = self.prepared
        checkpoint = Checkpoint(
            facts=self.facts,
            made=made,
            ledger=position,
            walk=p.walk.state_dict(),
            output=p.output.state_dict(),
        )
        write_checkpoint(self.folder.checkpoint, checkpoint, p.streams)


def _save_model(module: nn.Module, folder: RunFolder) -> None:
    """The module's state as safetensors, whole or not at all; parameters it shares are stored once."""
    beside = folder.model.with_name(folder.model.name + ".part")
    save_model(module, str(beside))
    write_atomically(folder.model, beside.read_bytes())
    beside.unlink()


@contextmanager
def _journal(folder: RunFolder, steps: int, *, after: int) -> Iterator[Watcher]:
    """Keep about 200 lines of exact training facts in `private/`; a resumed run adds to them (some steps twice)."""
    every = max(1, steps // 200)
    with (folder.private / "progress.jsonl").open("a" if after else "w") as file:

        def note(progress: Progress) -> None:
            if progress.step % every == 0 or progress.step == steps:
                facts: dict[str, Any] = {
                    name: getattr(progress, name) for name in ("step", "steps", "direction_norm", "charged")
                }
                facts["private"] = asdict(progress.private)
                file.write(json.dumps(facts) + "\n")

        yield note


def _both(first: Watcher, second: Watcher | None) -> Watcher:
    """A watcher that tells two."""

    def tell(progress: Progress) -> None:
        first(progress)
        if second is not None:
            second(progress)

    return tell
