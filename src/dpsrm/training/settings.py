"""What a run is asked to do: frozen settings, privacy apart from training apart from performance.

`Model` is what the command line can name; the Python interface takes any nn.Module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need, need_numbers
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.isolation import Isolation
from dpsrm.data import Loaded, Records, RecordSource, SparseRecords
from dpsrm.data.arrays import ArrayEncoder
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.gradients import AUTO, ENGINES, Layout, PerExampleLoss, binary_loss, multiclass_loss, squared_loss
from dpsrm.methods import DECAYS, OUTPUTS, ConstantStep, CorrectedAdam, OptimizerStep, Schedule, Stepper

StepperFactory = Callable[[float, Layout, Tensor], Stepper]
"""(learning rate, layout of the parameters, θ⁰) → step rule."""

KINDS = ("logistic", "linear", "mlp")


def _torch(optimizer: Callable[..., torch.optim.Optimizer], rate: float, layout: Layout, start_P: Tensor) -> Stepper:
    """A torch optimizer, fed with the released direction."""

    def factory(leaves: Any) -> torch.optim.Optimizer:
        return optimizer(leaves, lr=rate)

    return OptimizerStep.made(factory, layout, start_P)


OPTIMIZERS: dict[str, StepperFactory] = {
    "constant": lambda rate, _layout, _start: ConstantStep(rate),
    "dp-adam": lambda rate, _layout, _start: CorrectedAdam(rate),
    "sgd": partial(_torch, torch.optim.SGD),
    "adam": partial(_torch, torch.optim.Adam),
    "adamw": partial(_torch, torch.optim.AdamW),
    "rmsprop": partial(_torch, torch.optim.RMSprop),
    "adagrad": partial(_torch, torch.optim.Adagrad),
}
"""Step rules, by the names that settings and config files use."""

ROWS_PER_UNIT = 8
"""How many rows of one unit count, if nobody says: a constant, hence public (docs/whose-privacy.md)."""

OWN = "own"
"""The optimizer that `make_private` was given."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The promise: (ε, δ)-differential privacy under `adjacency`, proved by `accountant` for `sampling`.

    The noise is calibrated to spend ε exactly, unless `noise_multiplier` (std ÷ sensitivity) fixes it; ε is then a
    limit that the run may not exceed. `isolation` says how it is known that no example's contribution depends on
    another: "alone", by running each example alone; or "checked", by your word and a few comparisons at every release.

    `unit` names what is protected, if that is not one record: the column of ids (or, for arrays, any word for what
    `unit=` was given). One example is then a unit with at most `rows_per_unit` of its rows (None: 8), which is public.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    sampling: Scheme = Scheme.POISSON
    accountant: str = "pld"
    noise_multiplier: float | None = None
    isolation: Isolation = Isolation.ALONE
    unit: str | None = None
    rows_per_unit: int | None = None

    def __post_init__(self) -> None:
        """Refuse an ε, δ or noise with which nothing is promised."""
        need_numbers(epsilon=self.epsilon, delta=self.delta)
        if self.noise_multiplier is not None:
            need_numbers(noise_multiplier=self.noise_multiplier)
        need(0 < self.epsilon < math.inf, "epsilon must be positive and finite", epsilon=self.epsilon)
        need(0 < self.delta < 1, "delta must lie strictly between 0 and 1", delta=self.delta, remedy="try 1e-5")
        s = self.noise_multiplier
        need(s is None or 0 < s < math.inf, "the noise multiplier must be positive and finite", noise_multiplier=s)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "sampling", Scheme(self.sampling))
        object.__setattr__(self, "isolation", Isolation(self.isolation))
        named = self.unit is None or (isinstance(self.unit, str) and self.unit.strip() != "")
        need(named, "unit names the column of ids", unit=self.unit, remedy="ids themselves are given to train as unit=")
        k = self.rows_per_unit
        need(
            k is None or (type(k) is int and k >= 1), "rows_per_unit must be a whole number, 1 or more", rows_per_unit=k
        )
        if self.unit is not None and k is None:
            object.__setattr__(self, "rows_per_unit", ROWS_PER_UNIT)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long and in which steps to train; every number is public.

    Args:
        batch: records per release, b (None: a 64th of the data, at least 64).
        first_batch: records of the first release, b0 (None: as `batch`).
        epochs: passes over the data, counted in records drawn (each costs two gradients in DP-SRM).
        steps: updates; instead of `epochs`.
        learning_rate: of the constant step or the optimizer.
        optimizer: "constant", "dp-adam" (Adam that knows the noise), or the name of a torch optimizer that is fed with
            the released direction.
        decay: how the learning rate falls: constant, linear, cosine, sqrt.
        warmup: steps over which it rises to its full size first.
        output: which θ to hand out: last, random, tail, ema (None: the method's own, mostly tail).
        regulariser: λ of the data-independent penalty λ·Σθ²/(1+θ²); 0 for none.
    """

    batch: int | None = None
    first_batch: int | None = None
    epochs: float | None = None
    steps: int | None = None
    learning_rate: float = 1.0
    optimizer: str = "constant"
    decay: str = "constant"
    warmup: int = 0
    output: str | None = None
    regulariser: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot train."""
        need(self.epochs is None or self.steps is None, "give epochs or steps, not both", epochs=self.epochs)
        need(self.epochs is None or 0 < self.epochs < math.inf, "epochs must be positive", epochs=self.epochs)
        need(self.steps is None or self.steps >= 1, "steps must be 1 or more", steps=self.steps)
        for name in ("steps", "batch", "first_batch"):
            size = getattr(self, name)
            need(size is None or isinstance(size, (int, np.integer)), f"{name} must be a whole number", **{name: size})
        need_numbers(learning_rate=self.learning_rate)
        need(0 < self.learning_rate < math.inf, "the learning rate must be positive", learning_rate=self.learning_rate)
        need(
            self.optimizer in OPTIMIZERS or self.optimizer == OWN,
            f"optimizer must be one of {', '.join(OPTIMIZERS)}",
            optimizer=self.optimizer,
        )
        need(self.decay in DECAYS, f"decay must be one of {', '.join(DECAYS)}", decay=self.decay)
        need(self.warmup >= 0, "warmup must be 0 or more steps", warmup=self.warmup)
        known = self.output is None or self.output in OUTPUTS
        need(known, f"output must be one of {', '.join(OUTPUTS)}", output=self.output)
        need(0 <= self.regulariser < math.inf, "the regulariser cannot be negative", regulariser=self.regulariser)

    def schedule(self, n: int, *, fixed: int | None = None) -> Schedule:
        """The schedule for n records; `fixed` is the batch of a method that leaves no choice."""
        if fixed is not None:
            asked = {"batch": self.batch, "first_batch": self.first_batch}
            wrong = {name: size for name, size in asked.items() if size not in (None, fixed)}
            need(not wrong, f"this method's batches are always of {fixed}", **wrong, remedy="leave them out")
        batch = fixed or (self.batch if self.batch is not None else min(n, max(64, n // 64)))
        first = self.first_batch if self.first_batch is not None else batch
        for name, size in (("batch", batch), ("first_batch", first)):
            got: dict[str, Any] = {name: size, "n": n}
            need(1 <= size <= n, f"{name} must lie between 1 and the number of records", **got)
        if self.steps is not None:
            return Schedule(steps=self.steps, batch=batch, first_batch=first)
        passes = 10.0 if self.epochs is None else self.epochs
        rest = (passes * n - first) / batch
        return Schedule(steps=1 + max(0, round(rest)), batch=batch, first_batch=first)


@dataclass(frozen=True, kw_only=True)
class Performance:
    """How fast, never what: no setting here changes the guarantee.

    Args:
        engine: how clipped sums are computed; "auto" takes the fastest engine that knows the model.
        max_physical_batch: the most examples in memory at once; a larger batch is worked through in pieces, with the
            same result. None lets the engine choose: as many as stay in the cache (ghost) or in 64 MB (functional).
        threads: torch threads; None: one up to 10,000 parameters (more would wait for each other), else torch's own.
        checkpoint_seconds, checkpoint_steps: write a checkpoint so many seconds or releases after the last; 0: not by
            that measure. With both 0 the run cannot be resumed and its key never touches a disk.
        sharded: on several ranks, remember direction, optimizer state and averages in parts, each on one rank.
        prefetch: whether a thread reads the next draw's records, if they lie on disk, while a step computes.
    """

    engine: str = AUTO
    max_physical_batch: int | None = None
    threads: int | None = None
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int = 0
    sharded: bool = False
    prefetch: bool = True

    def __post_init__(self) -> None:
        """Refuse engines that do not exist."""
        known = self.engine == AUTO or self.engine in ENGINES
        need(known, f"engine must be one of {AUTO}, {', '.join(ENGINES)}", engine=self.engine)
        most = self.max_physical_batch
        need(most is None or most >= 1, "max_physical_batch must be 1 or more", max_physical_batch=most)
        need(self.threads is None or self.threads >= 1, "threads must be 1 or more", threads=self.threads)
        for name in ("checkpoint_seconds", "checkpoint_steps"):
            value = getattr(self, name)
            need(0 <= value < math.inf, f"{name} must be 0 or more", **{name: value})

    @property
    def resumable(self) -> bool:
        """Whether checkpoints are written at all."""
        return self.checkpoint_seconds > 0 or self.checkpoint_steps > 0

    def threads_for(self, parameters: int) -> int:
        """How many torch threads to use for a model of this size."""
        if self.threads is not None:
            return self.threads
        return 1 if parameters <= 10_000 else torch.get_num_threads()


@dataclass(frozen=True, kw_only=True)
class Model:
    """`kind` "logistic" (for classes) and "linear" (for numbers) are one linear layer from zero; "mlp" has tanh layers
    of the `hidden` sizes."""

    kind: str = "logistic"
    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        """Refuse models that do not exist."""
        words = f"the model must be one of {', '.join(KINDS)}"
        need(self.kind in KINDS, words, model=self.kind, remedy="any other: dpsrm.train or make_private in Python")
        sizes: Any = self.hidden
        sizes = sizes if isinstance(sizes, Iterable) else (sizes,)
        object.__setattr__(self, "hidden", tuple(int(h) if isinstance(h, np.integer) else h for h in sizes))
        whole = all(type(h) is int and h >= 1 for h in self.hidden)
        need(whole, "hidden layers need at least one unit, and whole ones", hidden=self.hidden)

    def build(self, *, features: int, classes: int, stream: np.random.Generator) -> nn.Module:
        """The module for `features` inputs and `classes` classes: one output for two, and for none (a number)."""
        outputs = 1 if classes in (0, 2) else classes
        if self.kind in ("logistic", "linear"):
            layer = nn.Linear(features, outputs)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
            return layer
        if self.kind == "mlp":
            with torch.random.fork_rng():
                torch.manual_seed(int(stream.integers(2**62)))
                sizes = [features, *self.hidden]
                layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
                return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
        raise AssertionError(self.kind)

    def size(self, *, features: int, classes: int) -> int:
        """How many numbers the model trains.

        >>> Model(kind="mlp").size(features=10, classes=2)
        769
        """
        outputs = 1 if classes in (0, 2) else classes
        sizes = [features, *(self.hidden if self.kind == "mlp" else ()), outputs]
        return sum((a + 1) * b for a, b in pairwise(sizes))

    def records(self, loaded: Loaded) -> RecordSource:
        """The records as this model is trained on them: images flat; a linear layer skips the zeros that encoders make.

        Guarantee: which form is taken depends on the model and the encoder, not on a record.
        """
        if not isinstance(loaded.rows, Records):
            return loaded.rows.then(lambda inputs: inputs.reshape(len(inputs), -1))
        flat = Records(loaded.records.inputs.flatten(1), loaded.records.targets)
        dense = self.kind == "mlp" or isinstance(loaded.encoder, (ArrayEncoder, ImageEncoder))
        return flat if dense else SparseRecords.of(flat)


def loss_for(classes: int) -> PerExampleLoss:
    """The loss that belongs to a model built for `classes` classes; for none, the squared loss of a number."""
    if classes == 0:
        return squared_loss
    return binary_loss if classes == 2 else multiclass_loss
