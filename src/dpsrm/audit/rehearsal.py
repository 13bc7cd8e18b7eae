"""A run of the production step with the airlock watched: what was drawn, asked, released, charged and published."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from dpsrm.core.errors import BudgetExceeded, DpsrmError
from dpsrm.core.events import Adjacency, Scheme, Spending
from dpsrm.core.secret import ClippedScores, ClippedSum, Streams
from dpsrm.data import Picked, RecordSource, as_records
from dpsrm.gradients import Batch, ModelLosses, PerExampleLoss, Query
from dpsrm.mechanisms.watched import Passage, WatchedAirlock
from dpsrm.methods import Choice
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Plan, RecordedRun, Settings, make_plan
from dpsrm.training.prepare import Prepared, prepare
from dpsrm.training.summing import Summer, Which
from dpsrm.training.train import begin

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class RehearsedCase:
    """What is rehearsed: a module, its loss, records and settings. The module itself is never trained."""

    module: nn.Module
    loss: PerExampleLoss | ModelLosses
    records: RecordSource
    settings: Settings
    plan: Plan

    @classmethod
    def of(cls, module: nn.Module, loss: PerExampleLoss | ModelLosses, data: Any, settings: Settings) -> RehearsedCase:
        """The case with its plan made once: neighbours have the same n."""
        records, made = as_records(data), []

        def planner(*what: Any, **how: Any) -> Plan:
            made.append(make_plan(*what, **how))
            return made[0]

        prepare(copy.deepcopy(module), loss, records, settings, Streams.choose(0), planner=planner)
        return cls(module=module, loss=loss, records=records, settings=settings, plan=made[0])

    @property
    def adjacency(self) -> Adjacency:
        """What the promise protects."""
        return self.plan.spending.adjacency

    def preparer(self, records: RecordSource | None = None) -> Callable[[Settings, Streams], Prepared]:
        """As `begin` wants it; `records` take the place of the case's own after everything was checked."""

        def made(settings: Settings, streams: Streams) -> Prepared:
            module, plan = copy.deepcopy(self.module), lambda *_, **__: self.plan
            found = prepare(module, self.loss, self.records, settings, streams, planner=plan)
            return found if records is None else replace(found, records=records)

        return made


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The records drawn for a release, and the sensitivity that the question itself implies (`None` for a choice)."""

    indices: Indices
    bound: float


class Attendance:
    """A `Summer` that writes down who was drawn; `without`: a record that is not there (add/remove adjacency)."""

    def __init__(self, sums: Summer, *, without: int | None = None) -> None:
        """Stand before `sums`."""
        self._sums, self._without = sums, without
        self.seen: list[Attended] = []

    def total(self, query: Query, which: Which, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum over the records that are there."""
        present = self._present(which, bound=sum(p.weight * p.clip for p in query.parts))
        return self._sums.total(query, present, release=release, batch=batch)

    def scores(self, choice: Choice, which: Which, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses over the records that are there."""
        return self._sums.scores(choice, self._present(which, bound=choice.clip), release=release, batch=batch)

    def _present(self, which: Which, *, bound: float) -> Indices:
        """Write down who was drawn; the indices of those records that are there."""
        assert not isinstance(which, Picked), "runs that protect units are not rehearsed"
        self.seen.append(Attended(indices=which.copy(), bound=bound))
        return which if self._without is None else which[which != self._without]


class _Full(Attendance):
    """The same for draws of all records, whose number is public: the absent one counts as a row of zeros."""

    def total(self, query: Query, which: Which, *, release: int, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum, said to be over all."""
        return replace(super().total(query, which, release=release, batch=batch), rows=len(self.seen[-1].indices))

    def scores(self, choice: Choice, which: Which, *, release: int, batch: Batch | None) -> ClippedScores:
        """The clipped losses, said to be over all."""
        return replace(super().scores(choice, which, release=release, batch=batch), rows=len(self.seen[-1].indices))


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """All of one rehearsal. `refusal` is why it stopped early; `beyond` whether one more release was refused."""

    passages: list[Passage]
    attended: list[Attended]
    published: dict[str, bytes] = field(repr=False)
    ledger: Spending
    epsilon: float | None = None
    refusal: DpsrmError | None = None
    beyond: bool = True

    @property
    def releases(self) -> list[Tensor]:
        """What was let out, to be replayed to a neighbour."""
        return [passage.released for passage in self.passages]


def rehearse(
    case: RehearsedCase,
    out: Path,
    *,
    seed: int,
    records: RecordSource | None = None,
    without: int | None = None,
    replay: Sequence[Tensor] = (),
) -> Transcript:
    """Run `case` to its end in the folder `out`, on other records or without one of them, watched.

    Args:
        seed: the same seed gives neighbours the same draws and the same noise.
        replay: a neighbour's releases, handed to the method instead of this run's own.
    """
    run = begin(replace(case.settings, seed=seed), case.preparer(records), out)
    door, there = watched(run, without=without, replay=replay)
    refusal, epsilon, beyond = None, None, True
    with run, run.step.running():
        try:
            while not run.step.done:
                run.advance()
            beyond = _refuses_more(run)
            guarantee = run.finish().guarantee
            epsilon = None if guarantee is None else guarantee.epsilon
        except DpsrmError as error:
            refusal = error
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and "private" not in path.parts]
    return Transcript(
        passages=door.passages,
        attended=there.seen,
        published={str(path.relative_to(out)): path.read_bytes() for path in files},
        ledger=read_ledger(out / "ledger.jsonl", torn=True).spending,
        epsilon=epsilon,
        refusal=refusal,
        beyond=beyond,
    )


def watched(
    run: RecordedRun, *, without: int | None = None, replay: Sequence[Tensor] = ()
) -> tuple[WatchedAirlock, Attendance]:
    """Put the window into the airlock of a run with a research seed, and write down who is drawn."""
    step = run.step
    door = WatchedAirlock(step.airlock, replay=replay)
    full = step.prepared.plan.sampling(step.prepared.plan.schedule.batch).scheme is Scheme.FULL
    there = (_Full if full else Attendance)(step.sums, without=without)
    step.airlock, step.sums = door, there
    return door, there


def _refuses_more(run: RecordedRun) -> bool:
    """Whether a release beyond the plan is refused, where the plan leaves no room for one."""
    plan, airlock = run.prepared.plan, run.step.airlock
    if plan.privacy is None or plan.method.adaptive or not plan.spending.charges:
        return True
    event = plan.spending.charges[-1].event
    if plan.epsilon_of(plan.spending.plus(event, 1)) <= plan.privacy.epsilon:
        return True
    with suppress(BudgetExceeded):
        airlock._pay(event)
        return False
    return True
