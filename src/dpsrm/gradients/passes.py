"""One pass of a module and its losses over examples, with all parameters and buffers by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize

from dpsrm.core.errors import need
from dpsrm.core.tree import Bundles, leaves, mapped, refilled
from dpsrm.gradients.batch import Batch, as_batch, examples
from dpsrm.gradients.below import nothing_below
from dpsrm.gradients.masks import masks_always_made
from dpsrm.gradients.rewrites import Rewriting

PerExampleLoss = Callable[..., Tensor]
"""(outputs, targets) → one loss per example, shape (B,); or, as `ModelLosses`, (model, batch) → the same."""


@dataclass(frozen=True)
class ModelLosses:
    """Marks a function of (model, batch) that gives one loss per example: for models that take more than one tensor.

    It must run the model that it is given, and no other: records never touch the user's own module.
    """

    function: Callable[[nn.Module, Batch], Tensor]


_SEVERAL = "average (or add) an example's losses over the other dimensions: losses.flatten(1).mean(1)"


class Supervised:
    """The losses of a model's outputs for a batch (inputs, targets)."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        """Remember the loss of outputs and targets."""
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Batch) -> Any:
        """The loss of each example."""
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        need(pair, "a loss of (outputs, targets) is for batches that are pairs", remedy="give losses(model, batch)")
        inputs, targets = batch
        return self._loss(model(inputs), targets)


@contextmanager
def _holding(module: nn.Module, values: dict[str, Tensor]) -> Iterator[None]:
    """Inside, the module holds these parameters and buffers; tied ones, of which one is named, stay tied.

    What `torch.func.functional_call` does too, in a third of the time. Parametrised tensors that `parametrize.cached()`
    keeps, under the numbers by which Python knows modules, are those of other values and other twins: none is used.
    """
    before: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
    found: dict[int, Tensor] = {}
    for path, owner in module.named_modules():
        for members in (owner._parameters, owner._buffers):
            for name, own in members.items():
                value = None if own is None else values.get(f"{path}.{name}" if path else name, found.get(id(own)))
                if own is not None and value is not None:
                    before.append((members, name, own))
                    found[id(own)] = value
    caching = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = 0, {}
    try:
        for members, name, own in before:
            members[name] = found[id(own)]
        yield
    finally:
        parametrize._cache_enabled, parametrize._cache = caching
        for members, name, own in before:
            members[name] = own


@dataclass(frozen=True, eq=False)
class Pass:
    """Twins of module and loss, and the values of all that is not trained: used for one pass and thrown away.

    `saving` is around every forward pass: it says what autograd keeps.
    """

    module: nn.Module
    losses: Callable[..., Any]
    values: dict[str, Tensor]
    saving: Callable[[], AbstractContextManager[Any]] = nullcontext

    def one(self, parameters: dict[str, Tensor], one: Batch) -> Tensor:
        """The loss of one example, as a batch of one."""
        return self.batch(parameters, as_batch(one)).squeeze(0)

    def batch(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        """The losses of a batch; an example of several rows has the sum of theirs."""
        if isinstance(batch, Bundles):
            losses_R = self.batch(parameters, mapped(lambda tensor: tensor.flatten(0, 1), batch.rows))
            counts_Bk: Tensor = batch.counts.to(losses_R.dtype)
            return (losses_R.view(counts_Bk.shape) * counts_Bk).sum(1)
        with self.saving(), _holding(self.module, {**self.values, **parameters}):
            losses_B = self.losses(self.module, batch)
        count = examples(batch)
        need(
            isinstance(losses_B, Tensor) and losses_B.shape == (count,),
            "the loss must give one number per example",
            shape=tuple(losses_B.shape) if isinstance(losses_B, Tensor) else type(losses_B).__name__,
            examples=count,
            remedy=_SEVERAL if isinstance(losses_B, Tensor) and losses_B.dim() > 1 else 'use reduction="none"',
        )
        return cast(Tensor, losses_B)

    def outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Any:
        """The module's outputs for a batch of inputs."""
        with _holding(self.module, {**self.values, **parameters}):
            return self.module(inputs)


def each_alone(function: Callable[[Batch], Any], batch: Batch, *, steady: bool = True) -> Any:
    """`function` of one example, for all examples of a batch at once.

    Attention is computed from products and a softmax, and recurrent layers step by step, because torch's fused kernels
    know nothing of vmap.
    """
    with sdpa_kernel(SDPBackend.MATH), Rewriting():
        return for_each(function, batch, steady=steady)


def for_each(function: Callable[[Batch], Any], batch: Batch, *, steady: bool = True) -> Any:
    """`torch.func.vmap` over the examples of any tree: torch's own knows no dataclasses and no None.

    Args:
        steady: random layers draw anew for each example; otherwise the same for all, because what an example draws
            would depend on its place.
    """
    draws = "different" if steady else "same"
    vectorised: Any = vmap(lambda *one: function(refilled(batch, iter(one))), randomness=draws)
    with masks_always_made(), nothing_below():
        return vectorised(*leaves(batch))
