"""A batch: a tree of tensors with the examples in the first dimension of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.core.tree import Ragged, form, leaves, mapped

Batch = Any
"""A tensor, or a tuple, list, dictionary or dataclass of batches; every tensor has a row per example. Or `Ragged`."""

Kind = Hashable
"""What examples are like, to look up what is known of all that are alike (`kind`)."""


def examples(batch: Batch) -> int:
    """How many examples there are.

    >>> examples({"ids": torch.ones(3, 2), "label": torch.ones(3)})
    3
    """
    if isinstance(batch, Ragged):
        return sum(examples(group) for group in batch.groups)
    tensors = leaves(batch)
    good = len(tensors) > 0 and all(isinstance(tensor, Tensor) and tensor.dim() > 0 for tensor in tensors)
    need(good, "a batch is a tree of tensors", got=[type(tensor).__name__ for tensor in tensors][:5], remedy=_COLLATE)
    sizes = {len(tensor) for tensor in tensors}
    need(len(sizes) == 1, "every tensor of a batch has a row per example", rows=sorted(sizes), remedy=_COLLATE)
    return sizes.pop()


_COLLATE = "let the collate function give tensors with the examples in their first dimension"


def groups(batch: Batch) -> tuple[Batch, ...]:
    """Batches of examples of one shape each."""
    return batch.groups if isinstance(batch, Ragged) else (batch,)


def rows(batch: Batch, cut: slice) -> Batch:
    """Some examples, as a batch."""
    return mapped(lambda tensor: tensor[cut], batch)


def padded(batch: Batch, size: int) -> Batch:
    """The batch, with its last example repeated until there are `size`.

    Kernels are chosen by the shape of a batch, and may round an example otherwise in a batch of another size.
    """
    if examples(batch) == size:
        return batch
    return mapped(lambda tensor: tensor[torch.arange(size, device=tensor.device).clamp_max(len(tensor) - 1)], batch)


def copies(one: Batch, size: int) -> Batch:
    """One example, `size` times."""
    return padded(as_batch(one), size)


def example(batch: Batch, i: int) -> Batch:
    """One example, without the dimension of the examples; a copy."""
    return mapped(lambda tensor: tensor[i].clone(), batch)


def each_example(batch: Batch) -> Iterator[Batch]:
    """All examples, one after the other."""
    for group in groups(batch):
        yield from (example(group, i) for i in range(examples(group)))


def as_batch(one: Batch) -> Batch:
    """One example as a batch of one."""
    return mapped(lambda tensor: tensor.unsqueeze(0), one)


def dense(batch: Batch) -> Batch:
    """The batch, with the zeros of tensors that were kept sparse."""
    return mapped(lambda tensor: tensor if tensor.layout is torch.strided else tensor.to_dense(), batch)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch where the parameters are."""
    if isinstance(batch, Ragged):
        return Ragged(tuple(on_device(group, device) for group in batch.groups))
    return mapped(lambda tensor: tensor.to(device), batch)


def kind(batch: Batch) -> Kind:
    """What the examples are like before their numbers: structure, shapes and types. All that code can know of them.

    Whatever is found out once and remembered is remembered by this, and by nothing less: of two kinds that share what
    was found, the one that comes first would decide for the other, and one record may be the first of its kind.

    >>> kinds = [kind(batch) for batch in (torch.ones(2, 3), torch.zeros(1, 3), torch.ones(2, 3, dtype=torch.int32))]
    >>> kinds[0] == kinds[1], kinds[0] == kinds[2]
    (True, False)
    """
    return form(batch, _array)


def _array(tensor: Tensor) -> Kind:
    """The shape of one example in a tensor, and the type of its numbers."""
    return tensor.shape[1:], tensor.dtype
