"""Reading ahead: a thread fetches the records of the next draw while this one's gradients are computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from dpsrm.data.datasets import ON_DISK
from dpsrm.gradients import Batch
from dpsrm.training.prepare import rows_of
from dpsrm.training.recorded import RecordedRun
from dpsrm.training.step import Draw
from dpsrm.training.summing import read


class ReadAhead:
    """The draws of a run in their order, each with its records; those that lie on disk are read one draw ahead.

    Guarantee: every draw is made by the step itself, in the caller's thread, from the secret stream at its own release;
    the other thread is given positions and reads. A run that reads ahead is the same to the bit as one that does not.

    Edge cases: where records are in memory, or what is drawn depends on what is released, there is nothing to read
    ahead and nothing is given: the step draws and reads by itself; so it does where a rank has several shares.
    """

    def __init__(self, run: RecordedRun) -> None:
        """Start no thread before it is needed."""
        prepared = run.prepared
        on_disk = isinstance(rows_of(prepared.records), ON_DISK)
        self.useful = on_disk and prepared.plan.method.foreseeable and prepared.settings.performance.prefetch
        self._run = run
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dpsrm-read") if self.useful else None
        self._next: tuple[Draw, Future[Batch]] | None = None

    def __call__(self) -> tuple[Draw | None, Batch | None]:
        """The next draw and its records, while those of the one after it begin to be read."""
        if self._pool is None:
            return None, None
        now, self._next = self._next, None
        if now is None or now[0].release != self._run.step.airlock.releases:  # the first, or the run went back
            now = self._begun(0)
        if now is None:
            return None, None
        batch = now[1].result()
        walk, plan = self._run.prepared.walk, self._run.prepared.plan
        if walk.time + 1 < plan.schedule.steps:
            self._next = self._begun(1)
        return now[0], batch

    def _begun(self, ahead: int) -> tuple[Draw, Future[Batch]] | None:
        """Draw, and let the records be read; None where this process has several shares of a batch, or none."""
        assert self._pool is not None
        draw = self._run.step.draw(ahead)
        if len(draw.shares) != 1:
            return None
        return draw, self._pool.submit(read, self._run.prepared.records, draw.which, draw.seed)

    def __enter__(self) -> ReadAhead:
        """Read ahead for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the thread; what it has not begun is not read."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
