"""A run under way in its folder: the step, checkpoints, and at the end model, report, certificate, closing line."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from safetensors.torch import save_model
from torch import nn

from dpsrm.accounting import Guarantee
from dpsrm.accounting.guarantee import rounded_up
from dpsrm.core.errors import DpsrmError, InputError, need
from dpsrm.core.events import Spending
from dpsrm.core.files import read_toml, write_atomically
from dpsrm.core.isolation import Isolation
from dpsrm.gradients import ENGINES, Engine, Objective, Way
from dpsrm.gradients.torch_state import copied
from dpsrm.mechanisms.sum_log import SumLog
from dpsrm.report import publish_words
from dpsrm.runs.book import PositionedBook
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.ledger import Closing, read_from_records
from dpsrm.training.checkpoint import Checkpoint, CheckpointTimer, write_checkpoint
from dpsrm.training.plan import Plan
from dpsrm.training.prepare import Prepared
from dpsrm.training.settings import OWN
from dpsrm.training.sharded_file import pieces
from dpsrm.training.step import Draw, Progress, Step

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A finished run: the trained module, what it cost, and where everything lies. `head` is the ledger's last
    hash: written down elsewhere, it lets `verify(run, expect=head)` notice also a folder rewritten as a whole.
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

    def __repr__(self) -> str:
        """One line: where it is and what it proves."""
        proved = (
            "not private"
            if self.guarantee is None
            else f"ε={rounded_up(self.epsilon, 4)}, δ={rounded_up(self.guarantee.delta)}"
        )
        return f"<Run {self.folder.path}: {proved}>"


class RecordedRun:
    """A run that writes what it charges and where it stands into its folder; `start.py` opens and reopens it.

    Args:
        prepared: the run.
        folder: its folder, held by this process.
        ledger: the folder's ledger, or the leader's word about it.
        facts: what goes into every checkpoint, to be compared when the run is resumed.
        held: locks and files to let go of at the end.
        sum_log: what releases were made of.
        after: where an interrupted run stood.
    """

    def __init__(
        self,
        prepared: Prepared,
        folder: RunFolder,
        ledger: PositionedBook,
        *,
        facts: dict[str, Any],
        held: ExitStack,
        sum_log: SumLog,
        after: Checkpoint | None = None,
    ) -> None:
        """Stand at the beginning, or where `after` stands."""
        self.prepared = prepared
        self.folder = folder
        self._facts = facts
        self._ledger = ledger
        self._sum_log = held.enter_context(sum_log)
        self.strategy = prepared.strategy
        self.step = self._step(None if after is None else after.released)
        self._held = held
        self._lock = folder.lock.stat() if self.strategy.leader else None
        self._closing = False
        self._timer = CheckpointTimer(prepared.settings.performance, self.write_checkpoint, self.strategy.due)
        journal = (folder.private / "progress.jsonl") if self.strategy.leader else Path(os.devnull)
        if self.strategy.leader:
            journal.touch(mode=0o600)
        self._journal = held.enter_context(journal.open("ab" if after else "wb", buffering=0))

    def advance(self, drawn: Draw | None = None, batch: Any = None) -> Progress | None:
        """Make the next release; see `Step`. What is handed out is a copy: nobody moves the walk but the step."""
        self._need_open()
        progress = self.step(drawn, batch)
        self._timer()
        if progress is None:
            return None
        _note(progress, self._journal)
        return replace(progress, theta=copied(progress.theta), direction=copied(progress.direction))

    def settle(self) -> None:
        """Have on disk what releases were made of, before anybody sees them: so nothing else gets their noise."""
        with self.strategy.together():
            self._sum_log.sync()

    def checkpoint(self) -> Checkpoint:
        """Where the run stands."""
        return Checkpoint(
            facts=self._facts,
            released=self.step.airlock.released,
            ledger=self._ledger.position,
            walk=self.prepared.walk.state_dict(),
            output=self.strategy.whole_state(self.prepared.output.state_dict()),
        )

    def write_checkpoint(self) -> None:
        """Keep where the run stands."""
        found = self.checkpoint()
        if self.strategy.leader:
            self._need_place()
            self._sum_log.sync()
            write_checkpoint(self.folder.checkpoint, found, self.prepared.streams)

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Go on from an earlier state of this run: what was released since is made again, the same."""
        self._need_open()
        self.prepared.restore(checkpoint.walk, checkpoint.output)
        self.step = self._step(checkpoint.released)

    def _step(self, released: Spending | None) -> Step:
        """The step after the releases made, with the threads the run began with."""
        made_with = self._facts["threads"], self._facts["shares"]
        return Step(self.prepared, self._ledger, released=released, made_with=made_with, sum_log=self._sum_log)

    def finish(self) -> Run:
        """Certify what the ledger on disk proves, close it over all that is published, then destroy the key.

        A run killed before the closing line makes its last releases, its model and its certificate again, the same to
        the byte; one killed after it is finished. A run that is stopped before its plan is fulfilled says so.
        """
        p, folder, plan = self.prepared, self.folder, self.prepared.plan
        result = self.step.result()
        self.settle()
        with self.strategy.together():
            changed = p.objective.publish(result)
        if changed:
            _log.warning(
                "%s changed while training; published is what it was at the beginning, because nobody charged for it",
                ", ".join(changed),
            )
        with self.strategy.together():
            guarantee, head = self._publish() if self.strategy.leader else (plan.guarantee, "")
        head = self.strategy.tell(head.encode()).decode()
        self.close()
        return Run(module=p.objective.module, plan=plan, guarantee=guarantee, folder=folder, head=head)

    def _publish(self) -> tuple[Guarantee | None, str]:
        """Write model and words, close the ledger over them, destroy the key; what is proved, and the ledger's head."""
        p, folder, plan = self.prepared, self.folder, self.prepared.plan
        self._need_place()
        _save_model(p.objective, folder)
        closing = Closing(
            released=min(len(self._sum_log), self._ledger.spending.releases),  # those before it went back included
            unit=p.settings.protected,
            isolation=Isolation.CHECKED if p.objective.way is Way.BATCH else Isolation.ALONE,
            engine=_name_of(self.step.engine),
            files={**self._facts["files"], **folder.digests(folder.model)},
            planned=() if self.step.done or plan.filter_rho is not None else plan.spending.charges,  # or there is none
            read=read_from_records(read_toml(folder.config)),
        )
        guarantee, closing = publish_words(folder, closing)
        self._closing = True
        self._ledger.close(closing)
        folder.destroy_key()
        return guarantee, self._ledger.position[1]

    def _need_open(self) -> None:
        """Refuse to go on with a run that was closed, also if it was interrupted before its key was destroyed."""
        need(not self._closing, "the run is finished", run=str(self.folder.path), remedy="finish() again, for its Run")

    def _need_place(self) -> None:
        """Refuse to write where another folder lies than the one that is held: another run's, perhaps."""
        same = self.folder.lock.exists() and os.path.samestat(cast(os.stat_result, self._lock), self.folder.lock.stat())
        remedy = "put it back (or go back to the working directory of then); what was released is charged in its ledger"
        need(same, "the run folder must stay where it is until the run ends", run=str(self.folder.path), remedy=remedy)

    def at_end(self, what: Callable[[], object]) -> None:
        """Have something done when the folder is let go of."""
        self._held.callback(what)

    def close(self) -> None:
        """Let go of the folder; an unfinished run can be resumed."""
        self._held.close()

    def __enter__(self) -> RecordedRun:
        """Let go of the folder at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Let go; what stopped an unfinished run says how to go on."""
        settings = self.prepared.settings
        if error is not None and settings.performance.resumable and not isinstance(error, DpsrmError):
            error.add_note(_hint(self.folder, own=settings.training.optimizer == OWN))
        self.close()


def _hint(folder: RunFolder, *, own: bool) -> str:
    """How to go on with an interrupted run, of one's own loop or of `train`."""
    if own:
        return f"to go on with this run: make_private(…, out={str(folder.path)!r}, resume=True)"
    return f"to go on with this run: dpsrm train --resume {folder.path}, or dpsrm.resume({str(folder.path)!r}, …)"


def _name_of(chosen: Engine) -> str:
    """What settings call this engine ("auto" is none)."""
    return next(name for name, kind in ENGINES.items() if kind is type(chosen))


def _save_model(objective: Objective, folder: RunFolder) -> None:
    """The module's state as safetensors, whole or not at all; parameters it shares are stored once.

    What came into the module while it was trained (a buffer of statistics, say) is no release, so it is left out.
    """
    later = sorted(objective.module.state_dict().keys() - objective.known)
    if later:
        _log.warning(
            "%s came into the module while training: left out, because nobody charged for it", ", ".join(later)
        )
    if objective.shards is not None:
        write_atomically(folder.model, pieces(objective))
        return
    beside = folder.model.with_name(folder.model.name + ".part")
    save_model(cast(nn.Module, _Known(objective)), str(beside))
    write_atomically(folder.model, beside.read_bytes())
    beside.unlink()


class _Known:
    """A module's state without what it did not have when the run was prepared."""

    def __init__(self, objective: Objective) -> None:
        """Of the user's module."""
        self._objective = objective

    def state_dict(self) -> dict[str, Any]:
        """As `nn.Module.state_dict`."""
        state = self._objective.module.state_dict()
        return {name: value for name, value in state.items() if name in self._objective.known}


def _note(progress: Progress, journal: RawIOBase) -> None:
    """Keep about 200 lines of exact training facts in `private/`; a resumed run adds to them (some steps twice)."""
    every = max(1, progress.steps // 200)
    if progress.step % every and progress.step != progress.steps:
        return
    facts: dict[str, Any] = {name: getattr(progress, name) for name in ("step", "steps", "direction_norm", "charged")}
    heard = {} if progress.heard is None else progress.heard.journal()
    line = json.dumps({**facts, **heard, "private": asdict(progress.private)}) + "\n"
    try:
        journal.write(line.encode())
    except OSError as error:
        raise InputError(
            f"cannot write the run's journal in private/: {error}; free some space, then resume"
        ) from error
