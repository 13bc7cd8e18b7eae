"""A private run that goes on one step at a time, in one's own loop."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from dpsrm.core.errors import RankFailed, ResumeError, need
from dpsrm.gradients import Batch
from dpsrm.training.checkpoint import pack_checkpoint, unpack_checkpoint
from dpsrm.training.loader import PrivateLoader
from dpsrm.training.recorded import RecordedRun, Run
from dpsrm.training.step import Progress
from dpsrm.training.untouched import Untouched, need_gradients

_STATE = "dpsrm"


class PrivateTraining:
    """A private run that goes on one `step` at a time, in one's own loop. Made by `make_private`.

    Attributes:
        data_loader: gives the batches, each a fresh draw by the sampling that is charged.
        done: whether all planned releases were made.
    """

    def __init__(
        self, run: RecordedRun, data_loader: PrivateLoader, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Go on where the run stands; `optimizer` is the user's, which nobody else may step from now on."""
        self.data_loader = data_loader
        self._run = run
        self._finished: Run | None = None
        self._abandoned = weakref.finalize(self, run.close)
        self._untouched = Untouched(run.prepared.objective, optimizer)
        run.at_end(self._untouched.let_go)
        self._to_model()

    def __repr__(self) -> str:
        """Where the run is kept, and where it stands."""
        return f"PrivateTraining({str(self.folder)!r}, {self.steps_made} steps made)"

    @property
    def done(self) -> bool:
        """Whether all planned releases were made."""
        return self._run.step.done

    @property
    def steps_made(self) -> int:
        """How many updates were made: where a resumed loop stands."""
        return self._run.prepared.walk.time

    @property
    def epsilon(self) -> float:
        """ε of the releases made so far, those included that going back, or a crash, makes again (all that is charged).

        It is what they cost if their number was fixed beforehand; the certificate of a run that is stopped early states
        the ε of the whole plan, since what was released may have decided when to stop.
        """
        return self._run.step.airlock.epsilon

    @property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self._run.folder.path

    def step(self, batch: Batch) -> Progress | None:
        """Clip and sum the batch's gradients, charge, add noise, let the method and the optimizer move the model.

        Args:
            batch: what the data loader gave last, unchanged.

        Returns:
            What is known after the step; None if the method needs another release before it moves.

        Guarantee: a batch that the loader did not draw, or that was changed or used before, is refused.
        """
        need(self._finished is None, "the run is finished", run=str(self.folder), remedy="begin another: make_private")
        need_gradients()
        step, prepared = self._run.step, self._run.prepared
        with step.over_records(of=RankFailed), self._run.strategy.together():  # a record may have stopped another rank
            drawn = self.data_loader.take(batch)
            self._untouched.need(prepared.walk.theta)
        with self._untouched.stepping(), step.running():
            progress = self._run.advance(drawn.draw, drawn.batch)
        self._run.settle()
        self._to_model()
        return progress

    def finish(self) -> Run:
        """Close the ledger, write model and certificate; the model now holds the output θ.

        A run that is finished before its plan is fulfilled keeps what was charged; its certificate says how many
        releases were made, charged and planned. What is finished stays so: the same run is returned again.
        """
        if self._finished is None:
            self._finished = self._run.finish()
        return self._finished

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, for one's own checkpoints: model, optimizer, method and ledger position.

        The one tensor in it can be saved by `torch.save` or safetensors; only this run's key can read it back. Keep it
        to yourself, as all of `private/`. Schedulers and loop counters are the loop's own to save.
        """
        self._untouched.need_memory()
        packed = pack_checkpoint(self._run.checkpoint(), self._run.prepared.streams)
        return {_STATE: torch.frombuffer(bytearray(packed), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to `state`: what was released since is made again, the same, without a new charge.

        Edge cases: `ResumeError` for a state of another run. A step that would not be the same as before (another
        loss or learning rate) is refused when it comes.
        """
        if set(state) != {_STATE}:
            raise ResumeError(f"not a state of a private run: {sorted(state)[:5]}")
        packed = bytes(state[_STATE].numpy())
        self._run.rewind(unpack_checkpoint(packed, self._run.prepared.streams, "this state"))
        self.data_loader.pending = None
        self._untouched.look()
        self._to_model()

    def __enter__(self) -> PrivateTraining:
        """Let go of the run's folder at the end of the block, whatever happens in it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """An error leaves a run that can be resumed; a block that ends without `finish` does too."""
        self._run.__exit__(kind, error, at)

    def _to_model(self) -> None:
        """Let the model hold θ."""
        prepared = self._run.prepared
        prepared.objective.layout.write(prepared.objective.module, prepared.walk.theta)
