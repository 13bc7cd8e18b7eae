"""A module and its per-example loss, as a function of the flat vector of parameters; every example is run alone.

Shapes: B examples, P trainable parameters in all.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.errors import DpsrmError, InputError, IsolationError, need
from dpsrm.core.tree import leaves
from dpsrm.gradients.batch import Batch, dense, example, examples, groups
from dpsrm.gradients.borrowed import Borrowed
from dpsrm.gradients.fresh import Fresh
from dpsrm.gradients.module_state import (
    Layout,
    Twins,
    is_sharded,
    local,
    named_state,
    need_own_memory,
    parameters_of,
    trained_parts,
)
from dpsrm.gradients.own import Own
from dpsrm.gradients.passes import ModelLosses, Pass, PerExampleLoss, Supervised, each_alone
from dpsrm.gradients.places import Draws
from dpsrm.gradients.shards import Shards
from dpsrm.gradients.torch_state import AutocastWatch, generators_kept, seed_generators


class Way(str, Enum):
    """How module and loss are run on a batch.

    VMAP: `torch.func.vmap` gives each example a batch of one, all at once. LOOP: one example after the other.
    BATCH: the whole batch in one call, on the user's word that it treats every example by itself (`Isolation.CHECKED`).
    """

    VMAP = "vmap"
    LOOP = "loop"
    BATCH = "batch"


@dataclass(frozen=True, eq=False)
class Objective:
    """f_i(θ) for every example i: the loss of `module` with trainable parameters θ on that example alone.

    Guarantee: the user's module and loss are never run. Every pass over records runs on twins that are equal to what
    they were when this object was made, with parameters and buffers passed by value, so a pass can neither change what
    is published nor see what another pass left behind. Under `Way.VMAP` and `Way.LOOP` each example is a batch of one:
    nothing in module or loss can mix, permute or couple examples.

    Edge cases: what module or loss write into their own state is discarded. Under vmap, writing numbers of an example
    into a buffer is an error, and so is a branch on an example's values: both are refused with a remedy. State kept
    outside of module and loss (globals, closures, files) cannot be seen; `refuse_memory` notices what it can.
    """

    module: nn.Module
    loss: PerExampleLoss | ModelLosses
    layout: Layout
    way: Way = Way.VMAP
    _twins: tuple[Twins, Twins] = field(repr=False, kw_only=True)
    _frozen: dict[str, Tensor] = field(repr=False, kw_only=True)
    _buffers: dict[str, Tensor] = field(repr=False, kw_only=True)
    _entry: dict[str, bytes] = field(repr=False, kw_only=True)
    known: frozenset[str] = field(repr=False, kw_only=True)
    """Every name of a parameter or buffer that the module had when this object was made."""
    own: Own = field(repr=False, kw_only=True)
    shards: Shards | None = field(default=None, kw_only=True)

    @classmethod
    def of(
        cls,
        module: nn.Module,
        loss: PerExampleLoss | ModelLosses,
        *,
        way: Way = Way.VMAP,
        shards: Shards | None = None,
    ) -> Objective:
        """Check the module, fix the order of its parameters, and remember its state.

        Args:
            loss: a function of (outputs, targets) for batches (inputs, targets), or `ModelLosses` for any batch.
            shards: the parameters that lie on several ranks; frozen ones are then fetched for every pass.
        """
        for name, child in module.named_modules():
            need(
                not (isinstance(child, nn.modules.batchnorm._BatchNorm) and child.training),
                "a layer that mixes the examples of a batch has no per-example gradient",
                layer=f"{name}: {type(child).__name__}",
                remedy="replace it with nn.GroupNorm (or call eval() on it, if its statistics are public)",
            )
        layout = Layout.of(module)
        function = loss.function if isinstance(loss, ModelLosses) else loss
        everything = parameters_of(module)
        need(
            shards is not None or not any(map(is_sharded, everything.values())),
            "sharded parameters are put together by train, resume and make_private",
            remedy="give the module before fully_shard",
        )
        twins = Twins(module), Twins(function, with_values=True, kept=trained_parts(module))
        held = dict(module.named_buffers())
        fixed = {name: p for name, p in everything.items() if name not in layout.names}
        frozen = {name: p.detach().clone() for name, p in fixed.items() if not is_sharded(p)}
        buffers = {name: buffer.detach().clone() for name, buffer in held.items()}
        entry = {name: _digest(value) for name, value in {**fixed, **buffers}.items()}
        known = frozenset(name for name, _ in named_state(module))
        state: dict[str, Any] = {
            "_twins": twins,
            "_frozen": frozen,
            "_buffers": buffers,
            "_entry": entry,
            "known": known,
        }
        own = Own(tuple(module.modules()), {n: t for n, t in {**everything, **held}.items() if not is_sharded(t)})
        need_own_memory(own.tensors)
        return cls(module, loss, layout, way, shards=shards, own=own, **state)

    def theta(self) -> Tensor:
        """A copy of the module's trainable parameters as one flat vector, whole on every rank."""
        return torch.cat([value.reshape(-1) for _, value in self.values(self.layout.names)])

    def values(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers of the module, one after the other: sharded ones whole, one block at a time."""
        held = {**parameters_of(self.module), **dict(self.module.named_buffers())}
        whole = None if self.shards is None else self.shards.whole(name for name in names if is_sharded(held[name]))
        for name in names:
            yield name, held[name].detach() if whole is None or not is_sharded(held[name]) else next(whole)[1]

    def losses(self, vector_P: Tensor, batch: Batch, *, steady: bool = True) -> Tensor:
        """The B losses at the parameters `vector_P`, each example alone (under `Way.BATCH`: all in one call).

        Args:
            steady: as in `for_each`.
        """
        return torch.cat([self._losses(vector_P, group, steady=steady) for group in groups(dense(batch))])

    def _losses(self, vector_P: Tensor, batch: Batch, *, steady: bool) -> Tensor:
        """The losses of examples of one shape."""
        count = examples(batch)
        with self.explained(vector_P, batch):
            if self.way is Way.BATCH and count:
                with Fresh():
                    return self.ready().batch(self.parameters(vector_P), batch)
            if self.way is Way.LOOP or count == 0:
                return self._one_by_one(vector_P, batch, count, Draws(steady=steady))
            if self.way is Way.VMAP:
                one, parameters = self.ready().one, self.parameters(vector_P)
                losses_B: Tensor = each_alone(lambda x: one(parameters, x), batch, steady=steady)
                return losses_B
        raise AssertionError(self.way)

    def _one_by_one(self, vector_P: Tensor, batch: Batch, count: int, draws: Draws) -> Tensor:
        """The losses, one example after the other."""
        each = [self.alone(vector_P, example(batch, i)) for i in draws.each(count)]
        return torch.stack(each) if each else vector_P.new_zeros(0)

    def alone(self, vector_P: Tensor, one: Batch) -> Tensor:
        """The loss of a single example (without the examples' dimension), by an ordinary call."""
        with Fresh():
            return self.ready(copy=True).one(self.parameters(vector_P), one)

    def parameters(self, vector_P: Tensor) -> dict[str, Tensor]:
        """The trainable parameters for one pass: a copy of θ, so that what is written into it is lost (ActNorm)."""
        return self.layout.split(vector_P.clone())

    def ready(self, *, copy: bool = False) -> Pass:
        """What one pass runs on: new twins, and the values of buffers and frozen parameters.

        Args:
            copy: frozen parameters are copied for this pass too. Under vmap nothing can write an example's numbers into
                them, so there the copy that all passes share will do.
        """
        module, losses = (twins.make() for twins in self._twins)
        assert isinstance(module, nn.Module)
        frozen = self._frozen
        if copy or self.way is not Way.VMAP:
            frozen = {name: value.clone() for name, value in frozen.items()}
        losses = losses if isinstance(self.loss, ModelLosses) else Supervised(losses)
        values = {**frozen, **{name: value.clone() for name, value in self._buffers.items()}}
        if self.shards is None:
            return Pass(module, losses, values)
        return Pass(module, losses, values, Borrowed(self.shards, module).saving)

    @contextmanager
    def explained(self, vector_P: Tensor, batch: Batch) -> Iterator[None]:
        """Turn an error inside module or loss into one that says whose it is, and what to do.

        The user's own module must neither be run nor be written meanwhile.
        """
        versions = [tensor._version for tensor in leaves(batch)]
        try:
            with self.own.untouched():
                yield
            unchanged = [tensor._version for tensor in leaves(batch)] == versions
            need(unchanged, "a module must not change its input in place", remedy="inplace=False")
        except DpsrmError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            if self.way is Way.VMAP and examples(batch) and self._runs(vector_P, batch):
                rule = "module and loss cannot be run on each example alone by vmap"
                raise IsolationError(f"{rule}: {words}{_hint(words)}{_WAYS_OUT}") from error
            if self.shards is not None and "saved tensor hooks" in words:
                raise IsolationError(_INSIDE) from error
            shapes = ", ".join(f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in leaves(batch))
            loss = "losses(model, batch)" if isinstance(self.loss, ModelLosses) else "loss"
            words += _hint(words)
            raise InputError(f"the module and {loss} must take the records ({shapes}): {words}") from error

    @torch.enable_grad()
    def _runs(self, vector_P: Tensor, batch: Batch) -> bool:
        """Whether each example runs by an ordinary call; with gradients, because the module may ask for some inside."""
        try:
            for i in range(examples(batch)):
                self.alone(vector_P.detach().requires_grad_(), example(batch, i))
        except Exception:
            return False
        return True

    def discarded(self, vector_P: Tensor, batch: Batch) -> list[str]:
        """The buffers and parameters, frozen or not, that a pass over the batch's first example writes, all in vain.

        Refuses autocast on trained layers on the way.
        """
        run, parameters = self.ready(copy=True), self.parameters(vector_P)
        values = {**run.values, **parameters}
        before = {name: value.clone() for name, value in values.items()}
        with torch.no_grad(), generators_kept(), AutocastWatch(parameters):
            run.one(parameters, example(dense(batch), 0))
        return [name for name, value in values.items() if not _same(value, before[name])]

    @torch.no_grad()
    def publish(self, vector_P: Tensor) -> list[str]:
        """Give the user's module the parameters `vector_P`, and all else the values it had when this object was made.

        Returns:
            The names of buffers and frozen parameters that somebody had changed meanwhile.
        """
        now = {**parameters_of(self.module), **dict(self.module.named_buffers())}
        changed = [name for name, digest in self._entry.items() if name in now and _digest(now[name]) != digest]
        for name in changed:
            kept = {**self._frozen, **self._buffers}.get(name)  # of what is sharded there is no copy
            if kept is None or _digest(kept) != self._entry[name]:  # a pass without a copy may have written it
                raise IsolationError(f"{name} was changed while training, so it cannot be published; leave it as it is")
            now[name].copy_(kept)
        self.layout.write(self.module, vector_P)
        return changed

    def refuse_memory(self, vector_P: Tensor, batch: Batch, other: Batch) -> None:
        """Refuse module and loss if an example's loss is another after another example was seen.

        Twins forget what a pass left in module and loss. What it left elsewhere shows here, on two batches.
        """
        seen = []
        with torch.no_grad(), generators_kept():
            for one in (batch, other, batch):
                seed_generators(0)
                seen.append(self.losses(vector_P, one))
        if not torch.equal(torch.nan_to_num(seen[0]), torch.nan_to_num(seen[2])):
            raise IsolationError(
                "an example's loss changed after another example was seen: module or loss remember examples outside "
                "of themselves (a global, a closure); keep such state out of what is trained privately"
            )

    def need_gradient(self, vector_P: Tensor, batch: Batch) -> None:
        """Refuse losses that do not depend on the parameters by functions that have a gradient, and hooks on these."""
        with torch.enable_grad(), generators_kept():
            losses_B = self.losses(vector_P.detach().requires_grad_(), batch)
        need(
            losses_B.requires_grad,
            "the loss must have a gradient in the trained parameters",
            dtype=losses_B.dtype,
            remedy="leave out .detach(), no_grad, argmax and whole numbers on the way from the model to its loss",
        )
        hooked = [name for name, p in parameters_of(self.module).items() if p.requires_grad and p._backward_hooks]
        need(
            not hooked,
            "hooks on parameters do not run where gradients are found for each example",
            parameters=hooked,
            remedy="remove them; let the optimizer (or requires_grad = False, before) decide what moves",
        )


_HINTS = {
    "setup_context": "switch activation checkpointing off, or give your autograd.Function a setup_context",
    "same dtype": "give model and records one type of numbers: model.float(); or, for float64, call "
    "torch.set_default_dtype(torch.float64) before the records are given",
    "int32/int64": "labels of classes must be whole numbers: labels.long()",
    "Target size": "outputs and targets must have one shape; for one output and labels 0 and 1, dpsrm.binary_loss",
    "dynamic shape": "run all experts on every example, with a gate of zero for those that are not chosen",
    ".item()": "torch.where instead of a branch on an example's values; instead of packed sequences, padding to one "
    "length and the last real step chosen by a mask",
    "control flow": "torch.where instead of a branch; a mask instead of packed sequences",
}
"""What helps, by a word of torch's error."""


_INSIDE = (
    "a module that differentiates inside of its forward cannot borrow frozen parameters from other ranks; "
    "leave fully_shard out"
)


def _hint(words: str) -> str:
    """What helps against an error of torch; empty if we do not know."""
    return next((f" ({hint})" for word, hint in _HINTS.items() if word in words), "")


_WAYS_OUT = (
    ". Three ways out: rewrite the module without writing examples into its state and without branching on their "
    'values; or performance.engine = "loop", which is slow; or privacy.isolation = "checked", which runs whole batches '
    "on your word that every example is treated by itself"
)


def _digest(value: Tensor) -> bytes:
    """The SHA-256 of a tensor's numbers, or of those that lie here."""
    numbers = local(value).cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(numbers.numpy().data).digest()


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same numbers."""
    return torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())


def as_losses(loss: PerExampleLoss | ModelLosses) -> PerExampleLoss | ModelLosses:
    """`ModelLosses` of a function whose first parameter is called `model`; anything else as it is.

    >>> type(as_losses(lambda model, batch: model(batch).sum(dim=1))).__name__
    'ModelLosses'
    >>> as_losses(nn.MSELoss(reduction="none"))
    MSELoss()
    """
    if isinstance(loss, (ModelLosses, nn.Module)):
        return loss
    try:
        first = next(iter(inspect.signature(loss).parameters), "")
    except (TypeError, ValueError):  # a function written in C has no signature
        return loss
    return ModelLosses(loss) if first == "model" else loss
