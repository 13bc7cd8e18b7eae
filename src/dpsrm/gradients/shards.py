"""Modules whose parameters lie in shards on several ranks (torch's `fully_shard`): what lies where.

A sharded parameter is a DTensor: each rank holds its part of the numbers. Twins hold empty tensors in its place, and
`Borrowed` fills in the whole numbers, block by block, while they are needed (docs/decisions/fully-shard.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Fetch = Callable[[int], dict[str, Tensor]]
"""From a block's number to its parameters, whole."""
_MARK = "_is_fsdp_managed_module"
_STATE = "__composable_api_state_key"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_STATE_HOOKS = ("_state_dict_", "_load_state_dict_")


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a part of one that lies on several ranks."""
    found = sys.modules.get("torch.distributed.tensor")  # where nobody imported it, nothing is sharded
    return found is not None and isinstance(tensor, found.DTensor)


def wrapped(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules, by name, that were given to `fully_shard`."""
    found = sys.modules.get("torch.distributed.fsdp")
    if found is None:
        return []
    return [(name, each) for name, each in module.named_modules() if isinstance(each, found.FSDPModule)]


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name; those that `fully_shard` put together for a forward pass of the user's are let go."""
    for _, each in wrapped(module):
        each.reshard()  # type: ignore[operator]
    return dict(module.named_parameters())


def local(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    found: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()
    return found


def part_of(whole: Tensor, sharded: Any) -> Tensor:
    """What this rank holds of a whole tensor that is sharded like another."""
    dim, mesh = sharded.placements[0].dim, sharded.device_mesh
    begin, length = spans(whole.shape[dim], mesh.size())[mesh.get_local_rank()]
    return whole.narrow(dim, begin, length)


def spans(length: int, ranks: int) -> list[tuple[int, int]]:
    """Where each rank's part of a dimension begins, and how long it is; the last ranks may have nothing.

    >>> spans(5, 2), spans(2, 3)
    ([(0, 3), (3, 2)], [(0, 1), (1, 1), (2, 0)])
    """
    each = -(-length // ranks)
    ends = [min(length, each * rank) for rank in range(ranks + 1)]
    return [(begin, end - begin) for begin, end in pairwise(ends)]


@dataclass(frozen=True)
class ShardedBlock:
    """Sharded parameters that are put together at once: of one module given to `fully_shard`, frozen or trained ones.

    Attributes:
        module: that module's name.
        parameters: this rank's parts, by name.
        places: where twins hold them: module, attribute, and the parameter's name; a tied one has several.
    """

    module: str
    trained: bool
    parameters: dict[str, nn.Parameter] = field(repr=False)
    places: tuple[tuple[str, str, str], ...] = field(repr=False)


def blocks_of(module: nn.Module) -> tuple[ShardedBlock, ...]:
    """The blocks of a module, in the same order on every rank; none if nothing is sharded."""
    roots = [name for name, _ in wrapped(module)]
    found: dict[tuple[str, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in parameters_of(module).items():
        home = max((root for root in roots if not root or name.startswith(f"{root}.")), key=len, default=None)
        if is_sharded(parameter) and home is not None:
            found.setdefault((home, parameter.requires_grad), {})[name] = parameter
    places = _places(module)
    return tuple(
        ShardedBlock(home, trained, held, tuple((*place, name) for name, p in held.items() for place in places[id(p)]))
        for (home, trained), held in found.items()
    )


def _places(module: nn.Module) -> dict[int, list[tuple[str, str]]]:
    """Owner and attribute of every sharded parameter, wherever it is registered."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if is_sharded(parameter):
                found.setdefault(id(parameter), []).append((path, name))
    return found


@dataclass(frozen=True)
class Shards:
    """The sharded parameters of a module, and how the ranks put them together."""

    blocks: tuple[ShardedBlock, ...]
    fetch: Fetch = field(repr=False)

    def whole(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Parameters, whole, one after the other; no more than one block of them is held at a time."""
        home = {name: number for number, block in enumerate(self.blocks) for name in block.parameters}
        last, held = -1, dict[str, Tensor]()
        for name in names:
            if home[name] != last:
                held.clear()
                last, held = home[name], self.fetch(home[name])
            yield name, held[name]


def bare(module: nn.Module) -> tuple[type[nn.Module], dict[str, Any]]:
    """A module's class and attributes without what `fully_shard` put there."""
    attributes = module.__dict__
    if _MARK not in attributes:
        return type(module), attributes
    sharding = sys.modules["torch.distributed.fsdp"].FSDPModule
    kind = next(each for each in type(module).__mro__ if not issubclass(each, sharding))
    kept = {
        n: v for n, v in attributes.items() if not n.startswith(_STATE) and n not in (_MARK, "_fsdp_use_orig_params")
    }
    return kind, {name: _without_hooks(name, value) for name, value in kept.items()}


def _without_hooks(name: str, value: Any) -> Any:
    """Hooks without torch's for sharding: a twin runs without them, and never loads a state."""
    if name in _HOOKS:
        return type(value)(
            (at, hook) for at, hook in value.items() if not hook.__module__.startswith("torch.distributed")
        )
    return type(value)() if name.startswith(_STATE_HOOKS) and isinstance(value, dict) else value


def emptied(twin: nn.Module) -> nn.Module:
    """A twin whose sharded parameters have their shapes but no numbers; tied ones stay tied."""
    empty: dict[int, nn.Parameter] = {}
    for owner in twin.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and is_sharded(parameter):
                made = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                owner._parameters[name] = empty.setdefault(id(parameter), nn.Parameter(made, requires_grad=False))
    return twin
