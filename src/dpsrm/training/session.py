"""One run under way in its folder: loop, checkpoints, and at the end model, closing line, certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from safetensors.torch import save_model
from torch import nn

from dpsrm.accounting import Guarantee
from dpsrm.core.chain import GENESIS
from dpsrm.core.events import Spending
from dpsrm.core.files import write_atomically
from dpsrm.core.isolation import Isolation
from dpsrm.gradients import ENGINES, Engine, Way
from dpsrm.runs.certificate import prove, render
from dpsrm.runs.closing import Closing
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.ledger import Ledger, read_ledger
from dpsrm.training.checkpoint import Checkpoint, Pacemaker, write_checkpoint
from dpsrm.training.loop import Keeper, Parts, Progress, Watcher, run_loop
from dpsrm.training.plan import Plan
from dpsrm.training.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: the trained module, what it cost, and where everything lies.

    `head` is the ledger's last hash. Written down elsewhere, it lets `verify(run, expect=head)` notice also a folder
    that was rewritten as a whole.
    """

    module: nn.Module
    plan: Plan
    guarantee: Guarantee | None
    folder: RunFolder
    head: str

    @property
    def epsilon(self) -> float:
        """The ε that the ledger proves; infinite for a run without privacy."""
        return float("inf") if self.guarantee is None else self.guarantee.epsilon


@dataclass(frozen=True, kw_only=True)
class Session:
    """A prepared run and its folder; `facts` go into every checkpoint.

    Among them are the digests of the files written before the run began, so that it is closed over these.
    """

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
        return self._finish(ledger, released=released, by=parts.engine)

    def _finish(self, ledger: Ledger, *, released: int, by: Engine) -> Run:
        """Certify what the ledger on disk proves, close it over all that is published, then destroy the key.

        A run killed before the closing line makes its last releases, its model and its certificate again, the same to
        the byte; one killed after it is finished.
        """
        p, folder = self.prepared, self.folder
        facts = read_ledger(folder.ledger)
        guarantee = prove(facts)
        closing = Closing(
            released=released,
            unit=p.settings.record,
            isolation=Isolation.CHECKED if p.objective.way is Way.BATCH else Isolation.ALONE,
            engine=_name_of(by),
            files={**self.facts["files"], **folder.digests(folder.model)},
        )
        write_atomically(folder.certificate, render(facts, guarantee, closing).encode())
        ledger.close(replace(closing, files={**closing.files, **folder.digests(folder.certificate)}))
        folder.forget()
        return Run(module=p.objective.module, plan=p.plan, guarantee=guarantee, folder=folder, head=ledger.position[1])

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


def _name_of(chosen: Engine) -> str:
    """What settings call this engine ("auto" is none)."""
    return next(name for name, kind in ENGINES.items() if kind is type(chosen))


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
