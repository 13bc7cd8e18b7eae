"""A module, its per-example loss, and the flat vector its trainable parameters make; every example is run alone.

Shapes: B examples, P trainable parameters in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsrm.core.errors import DpsrmError, InputError, IsolationError, need
from dpsrm.gradients.twins import Twins

PerExampleLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one loss per example, shape (B,)."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they lie in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module`'s parameters with requires_grad; the others are frozen and stay as they are."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        need(len(named) > 0, "the module must have a trainable parameter", module=type(module).__name__)
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter holds."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return sum(self.sizes)

    def split(self, vector_P: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector in the parameters' shapes."""
        pieces = torch.split(vector_P, self.sizes)
        return {n: piece.view(s) for n, piece, s in zip(self.names, pieces, self.shapes, strict=True)}

    def read(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one flat vector."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    @torch.no_grad()
    def write(self, module: nn.Module, vector_P: Tensor) -> None:
        """Copy the flat vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        for name, piece in self.split(vector_P).items():
            parameters[name].copy_(piece)


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
    loss: PerExampleLoss
    layout: Layout
    way: Way = Way.VMAP
    _twins: tuple[Twins, Twins] = field(repr=False, kw_only=True)
    _frozen: dict[str, Tensor] = field(repr=False, kw_only=True)
    _buffers: dict[str, Tensor] = field(repr=False, kw_only=True)

    @classmethod
    def of(cls, module: nn.Module, loss: PerExampleLoss, *, way: Way = Way.VMAP) -> Objective:
        """Check the module, fix the order of its parameters, and remember its state."""
        for name, child in module.named_modules():
            need(
                not (isinstance(child, nn.modules.batchnorm._BatchNorm) and child.training),
                "a layer that mixes the examples of a batch has no per-example gradient",
                layer=f"{name}: {type(child).__name__}",
                remedy="replace it with nn.GroupNorm (or call eval() on it, if its statistics are public)",
            )
        layout = Layout.of(module)
        twins = Twins(module), Twins(loss, with_values=True)
        frozen = {name: p.detach().clone() for name, p in module.named_parameters() if name not in layout.names}
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        return cls(module, loss, layout, way, _twins=twins, _frozen=frozen, _buffers=buffers)

    def losses(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The B losses at the parameters `vector_P`, each example alone (under `Way.BATCH`: all in one call)."""
        inputs = dense(inputs)
        with self.explained(vector_P, inputs, targets):
            if self.way is Way.BATCH and len(inputs):
                return self.ready().batch(self.parameters(vector_P), inputs, targets)
            if self.way is Way.LOOP or len(inputs) == 0:
                return self._one_by_one(vector_P, inputs, targets)
            if self.way is Way.VMAP:
                one, parameters = self.ready().one, self.parameters(vector_P)
                losses_B: Tensor = each_alone(lambda x, y: one(parameters, x, y))(inputs, targets)
                return losses_B
        raise AssertionError(self.way)

    def _one_by_one(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses, one example after the other."""
        each = [self.alone(vector_P, inputs[i], targets[i]) for i in range(len(inputs))]
        return torch.stack(each) if each else vector_P.new_zeros(0)

    def alone(self, vector_P: Tensor, one_input: Tensor, one_target: Tensor) -> Tensor:
        """The loss of a single example, by an ordinary call."""
        return self.ready(copy=True).one(self.parameters(vector_P), one_input, one_target)

    def parameters(self, vector_P: Tensor) -> dict[str, Tensor]:
        """The trainable parameters for one pass: a copy of θ, so that what is written into it is lost (ActNorm)."""
        return self.layout.split(vector_P.clone())

    def ready(self, *, copy: bool = False) -> Pass:
        """What one pass runs on: new twins, and the values of buffers and frozen parameters.

        Args:
            copy: frozen parameters are copied for this pass too. Under vmap nothing can write an example's numbers into
                them, so there the copy that all passes share will do.
        """
        module, loss = (twins.make() for twins in self._twins)
        assert isinstance(module, nn.Module)
        frozen = self._frozen
        if copy or self.way is not Way.VMAP:
            frozen = {name: value.clone() for name, value in frozen.items()}
        return Pass(module, loss, {**frozen, **{name: value.clone() for name, value in self._buffers.items()}})

    @contextmanager
    def explained(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> Iterator[None]:
        """Turn an error inside module or loss into one that says whose it is, and what to do."""
        version = inputs._version
        try:
            yield
            need(inputs._version == version, "a module must not change its input in place", remedy="inplace=False")
        except DpsrmError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())[:300]
            if self.way is Way.VMAP and len(inputs) and self._runs(vector_P, inputs, targets):
                rule = "module and loss cannot be run on each example alone by vmap"
                raise IsolationError(f"{rule}: {words}{_WAYS_OUT}") from error
            shapes = f"inputs {tuple(inputs.shape)}, targets {tuple(targets.shape)} of {targets.dtype}"
            raise InputError(f"the module and loss must take the records ({shapes}): {words}") from error

    @torch.no_grad()
    def _runs(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> bool:
        """Whether an example runs by an ordinary call."""
        try:
            self.alone(vector_P, inputs[0].clone(), targets[0])
        except Exception:
            return False
        return True

    def discarded(self, vector_P: Tensor, one_input: Tensor, one_target: Tensor) -> list[str]:
        """The buffers and parameters, frozen or not, that a pass over one example writes, all in vain."""
        run, parameters = self.ready(copy=True), self.parameters(vector_P)
        values = {**run.values, **parameters}
        before = {name: value.clone() for name, value in values.items()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run.one(parameters, one_input.clone(), one_target)
        return [name for name, value in values.items() if not _same(value, before[name])]

    def refuse_memory(self, vector_P: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Refuse module and loss if an example's loss is another after another example was seen.

        Twins forget what a pass left in module and loss. What it left elsewhere shows here, on the first examples.
        """
        inputs, last = dense(inputs), len(inputs) - 1
        seen = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for i in (0, last, 0):
                torch.default_generator.manual_seed(0)
                seen.append(self.losses(vector_P, inputs[i : i + 1].clone(), targets[i : i + 1]))
        if not torch.equal(torch.nan_to_num(seen[0]), torch.nan_to_num(seen[2])):
            raise IsolationError(
                "an example's loss changed after another example was seen: module or loss remember examples outside "
                "of themselves (a global, a closure); keep such state out of what is trained privately"
            )


_WAYS_OUT = (
    ". Three ways out: rewrite the module without writing examples into its state and without branching on their "
    'values; or performance.engine = "loop", which is slow; or privacy.isolation = "checked", which runs whole batches '
    "on your word that every example is treated by itself"
)


@dataclass(frozen=True, eq=False)
class Pass:
    """Twins of module and loss, and the values of all that is not trained: used for one pass and thrown away."""

    module: nn.Module
    loss: Callable[..., Any]
    values: dict[str, Tensor]

    def one(self, parameters: dict[str, Tensor], one_input: Tensor, one_target: Tensor) -> Tensor:
        """The loss of one example, as a batch of one."""
        return self.batch(parameters, one_input.unsqueeze(0), one_target.unsqueeze(0)).squeeze(0)

    def batch(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch."""
        losses_B: Tensor = self.loss(self.outputs(parameters, inputs), targets)
        need(
            losses_B.shape == (len(inputs),),
            "the loss must give one number per example",
            shape=tuple(losses_B.shape),
            examples=len(inputs),
            remedy='use reduction="none"',
        )
        return losses_B

    def outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Any:
        """The module's outputs for a batch."""
        return functional_call(self.module, {**self.values, **parameters}, (inputs,))


def each_alone(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """`function` of one example, for all examples of a batch at once; random layers draw anew for each.

    Attention is computed from products and a softmax, because torch's fused kernels know nothing of vmap.
    """
    vectorised: Callable[..., Any] = vmap(function, in_dims=in_dims, randomness="different")

    def run(*args: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return vectorised(*args)

    return run


def _same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same numbers."""
    return torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())


def dense(inputs: Tensor) -> Tensor:
    """Inputs that were kept sparse, with their zeros."""
    return inputs if inputs.layout is torch.strided else inputs.to_dense()
