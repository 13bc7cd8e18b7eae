"""A frozen trunk's features, computed once, so that private fine-tuning of a head never runs the trunk again."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.gradients.batch import padded
from dpsrm.gradients.fresh import Fresh
from dpsrm.gradients.module_state import Twins
from dpsrm.gradients.passes import each_alone


def split_frozen(module: nn.Sequential) -> tuple[nn.Sequential, nn.Sequential]:
    """The longest beginning of `module` without a trainable parameter, and the rest.

    Both share their layers with `module`: training the head trains the module.

    Edge cases: a module that is trainable from its first layer has an empty trunk; one that is frozen altogether is
    refused. Layers with randomness (dropout) in training mode belong to the head, so that they stay random.

    >>> body, last = nn.Linear(4, 3), nn.Linear(3, 2)
    >>> trunk, head = split_frozen(nn.Sequential(body.requires_grad_(False), nn.ReLU(), last))
    >>> len(trunk), len(head)
    (2, 1)
    """
    layers = list(module)
    frozen = 0
    while frozen < len(layers) and not _trains(layers[frozen]):
        frozen += 1
    need(frozen < len(layers), "the module must have a trainable parameter", module=type(module).__name__)
    return nn.Sequential(*layers[:frozen]), nn.Sequential(*layers[frozen:])


def _trains(layer: nn.Module) -> bool:
    """Whether a layer has trainable parameters or draws random numbers."""
    random = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.training for m in layer.modules())
    return random or any(p.requires_grad for p in layer.parameters())


@torch.no_grad()
def freeze_features(trunk: nn.Module, inputs: Tensor, *, batch: int = 256) -> Tensor:
    """The trunk's outputs for all records, (n, ...), `batch` records at a time.

    Args:
        trunk: a module without trainable parameters, for instance the first of `split_frozen`.
        inputs: all records' inputs, (n, ...).
        batch: how many records are run at once; it changes speed, not the result.

    Returns:
        The features in the order of `inputs`; train the head on them as if they were the records.

    Guarantee: each record is run alone, on a copy of the trunk (see `Objective`): row i is a function of record i and
    of the frozen parameters only, so replacing a record replaces one row: neighbouring datasets stay neighbouring, and
    computing the features costs no privacy. This holds if the frozen parameters were not trained on these records, or
    were trained privately and that cost is accounted for.

    Edge cases: a batch norm is refused in training mode; in evaluation mode it is a fixed map and allowed. The trunk is
    run as it is: call `trunk.eval()` first if it was trained with dropout. A trunk that cannot be run on each record
    alone by vmap is run on one record after the other.

    >>> freeze_features(nn.Flatten(), torch.ones(3, 2, 2)).shape
    torch.Size([3, 4])
    """
    need(batch >= 1, "a batch must have at least one record", batch=batch)
    frozen = not any(p.requires_grad for p in trunk.parameters())
    need(frozen, "the trunk must be frozen", remedy="call trunk.requires_grad_(False)")
    for name, layer in trunk.named_modules():
        fixed = not layer.training or not isinstance(layer, nn.modules.batchnorm._BatchNorm)
        need(fixed, "a batch norm in training mode mixes records", layer=name, remedy="call trunk.eval()")
    starts, twins = range(0, max(len(inputs), 1), batch), Twins(trunk, with_values=True)
    pieces = [_outputs(twins, inputs[start : start + batch], size=batch) for start in starts]
    return torch.cat(pieces)


def _outputs(twins: Twins, inputs: Tensor, *, size: int) -> Tensor:
    """The outputs for a few records, each alone on a copy of the trunk; `size` records are run at a time.

    A copy has parameters and all buffers of its own, also those that `state_dict` leaves out and other names for them.
    """

    def batch(inputs: Tensor) -> Tensor:
        output: Tensor = cast(nn.Module, twins.make())(inputs)
        return output

    def one(x: Tensor) -> Tensor:
        return batch(x.unsqueeze(0)).squeeze(0)

    if len(inputs) == 0:
        return batch(inputs)
    try:
        found: Tensor = each_alone(one, padded(inputs, size))[: len(inputs)]
    except Exception:
        with Fresh():
            found = torch.stack([one(x) for x in inputs])
    return found
