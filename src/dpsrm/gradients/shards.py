"""The blocks of a module whose parameters lie in shards on several ranks (torch's `fully_shard`).

A sharded parameter is a DTensor: each rank holds its part of the numbers. Twins hold empty tensors in its place, and
`Borrowed` fills in the whole numbers, block by block, while they are needed (docs/decisions/fully-shard.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from dpsrm.gradients.module_state import is_sharded, parameters_of, wrapped

Fetch = Callable[[int], dict[str, Tensor]]
"""From a block's number to its parameters, whole."""


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
