"""The step at the core: draw, clip and sum, release, tell, observe. Every loop is a `for` around it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpsrm.core.errors import BudgetExceeded, Diverged, InputError, IsolationError, LedgerError, ResumeError, need
from dpsrm.core.events import Sampling, Spending
from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.data import Picked
from dpsrm.gradients import Batch, engine
from dpsrm.gradients.torch_state import full_precision, generators_kept, heap_kept, precision_kept
from dpsrm.mechanisms import Airlock, zcdp_multiplier
from dpsrm.mechanisms.sum_log import Stopped, SumLog
from dpsrm.methods import Ask, Choice, Walk
from dpsrm.runs.book import Book
from dpsrm.sampling import draw
from dpsrm.sampling.draw import Indices
from dpsrm.training.prepare import Prepared
from dpsrm.training.summing import summer

_STOPPED = "that it stopped after releases were made may say something about a record: do not publish it"


@dataclass(frozen=True, kw_only=True)
class Heard:
    """The last noisy sum of a step: what was released, the noise in each number of it, and the clipped parts' names."""

    value: Tensor = field(repr=False)
    std: float
    parts: tuple[str, ...]

    def journal(self) -> dict[str, object]:
        """The sizes of sum and noise; functions of what was released."""
        noise = self.std * math.sqrt(self.value.numel())
        return {"parts": self.parts, "release_norm": float(torch.linalg.vector_norm(self.value)), "noise_norm": noise}


@dataclass(kw_only=True)
class Progress:
    """What is known after an update; `private` is for the operator's eyes only.

    Attributes:
        step, steps: updates made, and planned.
        model: the module that is trained, holding θ (in `train`, if there are callbacks; always in one's own loop).
        theta, direction: θ and v, functions of releases.
        spending: what is charged so far.
        metrics: what callbacks measured at this step, for callbacks after them.
        heard: the noisy sum that the step was made of.
    """

    step: int
    steps: int
    model: nn.Module
    theta: Tensor
    direction: Tensor
    spending: Spending
    private: Diagnostics
    epsilon_of_released: Callable[[], float] = field(repr=False, compare=False)
    metrics: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    heard: Heard | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """Which step it was; all else is large, or for the operator's eyes only, and is asked for by name."""
        return f"Progress(step {self.step} of {self.steps})"

    @property
    def direction_norm(self) -> float:
        """‖v‖."""
        return float(torch.linalg.vector_norm(self.direction))

    @property
    def charged(self) -> int:
        """How many releases are charged."""
        return self.spending.releases

    @property
    def epsilon(self) -> float:
        """ε of the releases made so far, computed when asked; to be asked for during the step."""
        return self.epsilon_of_released()

    def stop(self) -> None:
        """End the run after this step, with an honest certificate."""
        self.stopped = True


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The records (or units) drawn for one release: its number, the sampling that will be charged, their positions.

    Attributes:
        shares: what this process reads of them, share by share: positions of records, or of units the rows that count.
        seed: of the random numbers that datasets and collate functions get while they read.
    """

    release: int
    sampling: Sampling
    indices: Indices
    shares: tuple[Indices | Picked, ...]
    seed: int = field(repr=False)

    @property
    def which(self) -> Indices | Picked:
        """What this process reads, if it has one share."""
        need(
            len(self.shares) == 1,
            "in one's own loop every rank has one share of a batch",
            shares=len(self.shares),
            remedy="resume with as many ranks as the run began with",
        )
        return self.shares[0]


class Step:
    """One release after the other, until the plan is fulfilled.

    Args:
        prepared: the run; its walk and output move on.
        book: where charges are written before what they charge is released.
        released: the releases made before, when a run is resumed; walk and output stand where they left off.
        made_with: the torch threads to use, and the shares each batch is cut into; a resumed run uses as many as it
            began with, because sums depend on it.
        sum_log: what releases were made of, if they may have to be made again.

    Guarantee: every release passes the airlock, over records drawn by the sampling that is charged, with the randomness
    of its own number, whatever other threads draw meanwhile. An adaptive method ends before the first release that the
    budget does not allow.
    """

    def __init__(
        self,
        prepared: Prepared,
        book: Book,
        *,
        released: Spending | None = None,
        made_with: tuple[int, int] | None = None,
        sum_log: SumLog | None = None,
    ) -> None:
        """Make the airlock and the engine."""
        p, performance = prepared, prepared.settings.performance
        self.prepared = p
        self.book = book
        self.strategy = prepared.strategy
        self.threads, self._shares = made_with or (prepared.threads, self.strategy.ranks)
        self.engine = engine(
            performance.engine,
            p.objective,
            max_physical_batch=performance.max_physical_batch,
            steady=p.steady,
            expected=p.plan.schedule.batch,
        )
        self.airlock = Airlock(
            book,
            planned=p.plan.chargeable_ahead,
            epsilon_of=p.plan.epsilon_of,
            noise=p.streams.noise,
            released=released,
            sum_log=sum_log,
        )
        self.sums = summer(self.engine, p.objective, p.records, p.streams, steady=p.steady)
        self._mine = self.strategy.shares(self._shares)
        self._private = Diagnostics()
        self._heard: Heard | None = None
        self._exhausted = False
        self._turn = threading.RLock()
        self._stopped = Stopped() if sum_log is None else sum_log.stopped
        if self.airlock.releases == 0:
            p.output.observe(0, self.strategy.kept(p.walk))

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do: all updates made, or an adaptive method's budget used up."""
        return self._exhausted or self.prepared.walk.time >= self.prepared.plan.schedule.steps

    @contextmanager
    def running(self) -> Iterator[None]:
        """Use the run's number of threads and full precision, and leave torch's own generators as they are."""
        heap_kept()
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with generators_kept(), full_precision(self.prepared.walk.theta.device):
                yield
        finally:
            torch.set_num_threads(before)

    def draw(self, ahead: int = 0) -> Draw:
        """The records of the next release; drawing twice gives the same.

        Args:
            ahead: how many releases to look beyond it, for methods whose batches do not depend on what is released.
        """
        with self._turn:  # the streams are those of one release at a time
            batch = self.prepared.walk.ask().batch if ahead == 0 else self.prepared.plan.schedule.batch
            return self._draw(self.airlock.releases + ahead, batch)

    def _draw(self, release: int, batch: int) -> Draw:
        """The records of one release; the streams stand at its beginning."""
        p, sampling = self.prepared, self.prepared.plan.sampling(batch)
        p.streams.seek(release)
        indices = draw(sampling, p.streams.sampling)
        cuts = (slice(*(len(indices) * at // self._shares for at in (k, k + 1))) for k in self._mine)
        shares = tuple([p.pick(indices[cut], release) for cut in cuts])
        seed = p.streams.record_seed(release)
        return Draw(release=release, sampling=sampling, indices=indices, shares=shares, seed=seed)

    def __call__(self, drawn: Draw | None = None, batch: Batch | None = None) -> Progress | None:
        """Make the next release; what is known after it, or None if it was not yet an update.

        Args:
            drawn: what `draw` gave for it.
            batch: those records, if they were read already.
        """
        with self._turn:
            return self._step(drawn, batch)

    def _step(self, drawn: Draw | None, batch: Batch | None) -> Progress | None:
        """The same, while no other thread draws."""
        p, ask = self.prepared, self.prepared.walk.ask()
        if drawn is None:
            drawn = self._draw(self.airlock.releases, ask.batch)
        else:
            right = (drawn.release, drawn.sampling.batch) == (self.airlock.releases, ask.batch)
            need(right, "releases are made in their order", release=drawn.release, next=self.airlock.releases)
            p.streams.seek(drawn.release)
        before = p.walk.time
        try:
            with self.over_records():
                self._answer(ask, drawn, batch)
        except BudgetExceeded:
            if not p.plan.method.adaptive:
                raise
            self._exhausted = True
            return None
        self._stopped.made(drawn.release)
        if p.walk.time == before:
            return None
        _need_finite(p.walk)
        p.output.observe(p.walk.time, self.strategy.kept(p.walk))
        return Progress(
            step=p.walk.time,
            steps=p.plan.schedule.steps,
            model=p.objective.module,
            theta=p.walk.theta,
            direction=p.walk.direction,
            spending=self.book.spending,
            private=self._private,
            epsilon_of_released=lambda: self.airlock.epsilon,
            heard=self._heard,
        )

    @contextmanager
    def over_records(self, of: type[BaseException] = BaseException) -> Iterator[None]:
        """Around code that records may cause to fail: a run that ended there would tell of them (see `result`).

        Args:
            of: the errors that a record may have caused. A panic of compiled code is no `Exception`; and whether a
                user or a library that met a record wanted to interrupt or to exit, nobody can tell.
        """
        try:
            yield
        except (BudgetExceeded, ResumeError, LedgerError):
            raise
        except of as error:
            self._stopped.mark(self.airlock.releases)
            if self.airlock.releases and isinstance(error, (InputError, IsolationError)):
                raise type(error)(f"{error} ({_STOPPED})") from error
            raise

    def result(self) -> Tensor:
        """The θ to hand out; of a run stopped before its output keeps anything (a tail average), the newest.

        Guarantee: at the end of a plan, what was charged is what it predicted. No other end is where a record put it,
        nor before that, where one goes back to or resumes: the release that failed must be made first.
        """
        p, plan = self.prepared, self.prepared.plan
        private = plan.privacy is not None
        need(
            not private or self.done or self._stopped.at is None,
            "the last step failed, perhaps because of a record, so a run that ends before it is made would tell of it",
            release=self._stopped.at,
            next=self.airlock.releases,
            remedy="make the step, or publish nothing and begin anew with records that module and loss can take",
        )
        if self.done and not plan.method.adaptive and self.book.spending != plan.spending:
            raise LedgerError(
                "the ledger written differs from the ledger the plan predicted: this is a defect in dpsrm"
            )
        kept = self.strategy.whole_state(p.output.result())
        if kept is None and self.done:
            raise AssertionError("no iterate was observed")
        return p.walk.theta if kept is None else kept.to(p.walk.theta.dtype)

    def _answer(self, ask: Ask | Choice, drawn: Draw, batch: Batch | None) -> None:
        """Compute the secret, let its noisy form out, tell the walk; all randomness is that of this release."""
        p, sampling = self.prepared, drawn.sampling
        if isinstance(ask, Choice):
            everything = p.pick(drawn.indices, drawn.release)  # a choice is cheap: every rank looks at all records
            with self.strategy.together(), precision_kept(p.walk.theta.device):
                scores = self.sums.scores(ask, everything, release=drawn.release, batch=batch)
            index = self.airlock.select(scores, sampling=sampling, rho=ask.rho, selection=ask.selection)
            index = self.strategy.index(index)
            p.walk.tell(torch.tensor(index, device=p.walk.theta.device), std=0.0)
        elif isinstance(ask, Ask):
            self._heard = None  # its memory is free for the next
            with precision_kept(p.walk.theta.device):
                total = self._total(ask, drawn, batch)
            if ask.rho is None:
                s = p.plan.noise_multiplier
                value = self.airlock.release(total, sampling=sampling, noise_multiplier=s)
            else:
                s = zcdp_multiplier(ask.rho)
                value = self.airlock.release_zcdp(total, sampling=sampling, rho=ask.rho)
            value = self.strategy.whole(value, of=len(p.walk.theta))
            std = self.airlock.noise_std(total, sampling=sampling, noise_multiplier=s)
            p.walk.tell(value, std=std)
            self._private = total.diagnostics
            self._heard = Heard(value=value, std=std, parts=tuple(part.name for part in ask.query.parts))
        else:
            raise AssertionError(ask)

    def _total(self, ask: Ask, drawn: Draw, batch: Batch | None) -> ClippedSum[Tensor]:
        """The clipped sum over all shares of what was drawn, or this process's coordinates of it."""

        def summed() -> list[ClippedSum[Tensor]]:
            one = self.sums.total
            return [one(ask.query, share, release=drawn.release, batch=batch) for share in drawn.shares]

        return self.strategy.total(summed, ask.query, shares=self._shares, release=drawn.release)


def _need_finite(walk: Walk) -> None:
    """Refuse to go on from a θ that is no longer a number. Post-processing: it costs no privacy."""
    if not math.isfinite(float(torch.dot(walk.theta, walk.theta))):
        raise Diverged(
            f"training diverged: after step {walk.time} the parameters are no longer finite; what was released stays "
            "charged; start again with a smaller learning rate or smaller clips"
        )
