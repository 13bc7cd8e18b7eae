"""All runs of one proof: the step's sampler, the mechanisms, neighbours with the same randomness, a resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpsrm.audit import checks, statistics
from dpsrm.audit.neighbours import neighbours
from dpsrm.audit.rehearsal import RehearsedCase, Transcript, rehearse, watched
from dpsrm.core.errors import IsolationError
from dpsrm.core.events import Adjacency
from dpsrm.core.secret import Streams
from dpsrm.gradients import Objective
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Step
from dpsrm.training.reopen import reopen
from dpsrm.training.train import begin

Told = Callable[[int, int], object]
"""(done, of how many)."""
_SEED = 2026


class Attempt:
    """All runs of one proof, and what was found."""

    def __init__(self, case: RehearsedCase, folder: Path, progress: Told | None) -> None:
        """Nothing tried yet."""
        self.case, self._folder, self._progress = case, folder, progress or (lambda *_: None)
        self.findings: list[str] = []
        self.tried: Counter[str] = Counter()
        self.releases, self.moved, self._runs, self._most = 0, 0.0, 0, 0

    def run(self, rounds: int) -> None:
        """Everything, cheapest first; a finding ends it, because what follows would only repeat it."""
        objective = self.case.preparer()(self.case.settings, Streams.seeded(0)).objective
        self._most = 4 + rounds * 14
        for part in (statistics.meter(self.case.adjacency), self._sampler()):
            self._found(part)
        for seed in range(_SEED, _SEED + rounds):
            if not self.findings:
                self._with_seed(seed, objective)
        if not self.findings:
            self._found(self._resumed())

    def _found(self, what: Iterable[str]) -> None:
        """Keep findings."""
        self.findings += list(what)

    def _sampler(self) -> Iterator[str]:
        """Many draws of the step's own sampler."""
        prepared = self.case.preparer()(self.case.settings, Streams.seeded(_SEED))
        step = Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))
        yield from statistics.sampler(step, self.case)

    def _with_seed(self, seed: int, objective: Objective) -> None:
        """One run, and one on each of its neighbours with the same randomness."""
        one = self._rehearse(seed)
        if one.refusal is not None:
            self._found([f"the run was refused: {one.refusal}"])
            return
        for check in (checks.draws, checks.sizes, checks.charges):
            self._found(check(self.case, one))
        self._found(statistics.own_noise([one]))
        if not self.findings:
            often = _drawn_most(one, len(self.case.records))
            self._neighbours(one, often[(seed - _SEED) % len(often)], seed, objective)

    def _neighbours(self, one: Transcript, at: int, seed: int, objective: Objective) -> None:
        """The run on every neighbour that has another record, or none, in the place `at`."""
        together = next(there.indices for there in reversed(one.attended) if at in there.indices)
        others = together[together != at]
        if not len(others):
            others = np.array([other for other in range(len(self.case.records)) if other != at])
        base, word = one, ""
        if self.case.adjacency is Adjacency.ADD_REMOVE:
            self._compare("removed", one, self._rehearse(seed, without=at, replay=one.releases))
            base, word = self._rehearse(seed, without=at), "added: "
        for near in neighbours(self.case.records, at, others=others, objective=objective):
            there = self._rehearse(seed, records=near.records, replay=base.releases)
            self._compare(word + near.name, base, there)

    def _compare(self, name: str, one: Transcript, other: Transcript) -> None:
        """Compare two neighbours' runs."""
        self.tried[name] += 1
        for a, b in zip(one.passages, other.passages, strict=False):
            self.releases += 1
            self.moved = max(self.moved, checks.movement(a, b) / a.claimed)
        found = [f"{what} ({name})" for what in checks.pair(self.case, one, other)]
        if isinstance(other.refusal, IsolationError):
            found.append(f"{other.refusal} ({name})")
        self.findings += found

    def _rehearse(self, seed: int, **how: Any) -> Transcript:
        """One run in a folder of its own."""
        self._runs += 1
        self._progress(self._runs, max(self._runs, self._most))
        return rehearse(self.case, self._folder / f"run-{self._runs}", seed=seed, **how)

    def _resumed(self) -> Iterator[str]:
        """A run that is stopped half-way and resumed makes the releases that it would have made."""
        whole = self._rehearse(_SEED)
        if len(whole.passages) < 2:
            return
        often = replace(self.case.settings.performance, checkpoint_seconds=0, checkpoint_steps=1)
        settings = replace(self.case.settings, seed=_SEED, performance=often)
        out = self._folder / "resumed"
        run = begin(settings, self.case.preparer(), out)
        with run, run.step.running():
            for _ in range(len(whole.passages) // 2):
                run.advance()
        size = run.prepared.objective.layout.size
        with reopen(out, self.case.preparer(), parameters=size) as again, again.step.running():
            door, _ = watched(again)
            while not again.step.done:
                again.advance()
        for number, (a, b) in enumerate(zip(reversed(whole.passages), reversed(door.passages), strict=False)):
            if not (a.released.equal(b.released) and a.exact.equal(b.exact)):
                yield f"after a resume, release {len(whole.passages) - 1 - number} is another than without"
                return


def _drawn_most(one: Transcript, n: int) -> list[int]:
    """The records drawn most often after the first release (where differences are clipped, too), most often first."""
    counts = np.zeros(n, dtype=np.int64)
    for number, there in enumerate(one.attended):
        np.add.at(counts, there.indices, 2 if number else 1)
    order = np.argsort(-counts, kind="stable")
    return [int(at) for at in order if counts[at]] or [0]
