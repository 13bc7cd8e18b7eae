"""The sharded frozen parameters of one pass: each block is whole while its module runs, and again when backward asks.

Autograd would keep every frozen weight from its layer's forward to its backward, that is all of them at once. So what
it saves of a borrowed tensor is a note of where it came from, by which the block is put together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.shards import Shards

Place = tuple[nn.Module, str, str]
"""A twin's submodule, its attribute, and the name of the parameter that belongs there."""


@dataclass(frozen=True)
class _Note:
    """A view of a borrowed parameter, without its numbers."""

    block: int
    name: str
    size: Sequence[int]
    stride: Sequence[int]
    offset: int


class _Notes(saved_tensors_hooks):
    """Our own hooks, which a pass allows (below.py): a note is a place in a frozen parameter, never an example."""


class Borrowed:
    """What one pass borrows. Nothing of it is seen by another pass, so nothing written into it would be, either.

    Guarantee: beside the blocks whose modules are running (one inside the other), at most one block is held; the one
    before is let go first. Edge cases: what a module makes of a frozen weight (a copy in another type, a sum with a
    trained one) is its own, and autograd keeps it.
    """

    def __init__(self, shards: Shards, twin: nn.Module) -> None:
        """Fill in the blocks of `twin` when their modules run."""
        self._fetch = shards.fetch
        self._running: dict[int, int] = {}
        self._held: dict[int, dict[str, Tensor]] = {}
        self._versions: dict[int, dict[str, int]] = {}
        self._storages: dict[int, tuple[int, str]] = {}
        for number, block in enumerate(shards.blocks):
            if not block.trained:
                places = [(twin.get_submodule(path), attribute, name) for path, attribute, name in block.places]
                empty = [owner._parameters[attribute] for owner, attribute, _ in places]
                module = twin.get_submodule(block.module)
                module.register_forward_pre_hook(partial(self._begin, number, places), prepend=True)
                module.register_forward_hook(partial(self._end, number, places, empty))

    def saving(self) -> AbstractContextManager[Any]:
        """A forward pass in here saves notes instead of borrowed numbers."""
        return _Notes(self._noted, self._found)

    def _begin(self, number: int, places: Sequence[Place], *_: Any) -> None:
        """Before a module runs: its block."""
        block = self._block(number)
        self._running[number] = self._running.get(number, 0) + 1
        for owner, attribute, name in places:
            owner._parameters[attribute] = block[name]  # type: ignore[assignment]

    def _end(self, number: int, places: Sequence[Place], empty: Sequence[nn.Parameter | None], *_: Any) -> None:
        """After it ran: empty tensors again; its block stays until another one is asked for."""
        for name, tensor in self._held[number].items():
            if tensor._version != self._versions[number][name]:
                raise IsolationError(f"a module must not write into {name}, which is frozen and sharded")
        self._running[number] -= 1
        if self._running[number] == 0:
            del self._running[number]
            for (owner, attribute, _name), nothing in zip(places, empty, strict=True):
                owner._parameters[attribute] = nothing

    def _block(self, number: int) -> dict[str, Tensor]:
        """A block that is held, or fetched after letting go of those that nobody runs."""
        if number not in self._held:
            for other in set(self._held) - set(self._running):
                del self._held[other]
            self._storages.clear()  # of memory that is given back: other tensors may come to lie there
            self._held[number] = self._fetch(number)
            self._versions[number] = {name: tensor._version for name, tensor in self._held[number].items()}
            self._storages = {
                tensor.untyped_storage().data_ptr(): (at, name)
                for at, held in self._held.items()
                for name, tensor in held.items()
                if tensor.numel()
            }
        return self._held[number]

    def _noted(self, tensor: Tensor) -> Tensor | _Note:
        """What autograd keeps of a tensor."""
        plain = tensor.layout is torch.strided and tensor.numel() > 0
        place = self._storages.get(tensor.untyped_storage().data_ptr()) if plain else None
        if place is None or tensor.dtype != self._held[place[0]][place[1]].dtype:
            return tensor.detach()
        return _Note(*place, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _found(self, kept: Tensor | _Note) -> Tensor:
        """The tensor again."""
        if isinstance(kept, Tensor):
            return kept
        return self._block(kept.block)[kept.name].as_strided(kept.size, kept.stride, kept.offset)
