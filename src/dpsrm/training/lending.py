"""Ranks lend each other their shards of a module: whoever needs a block asks for it, the others answer.

Ranks do not need the same blocks at the same time, nor as many: a share of a batch may be empty, or cut into other
pieces, or fail. So there are *rounds*: in each, every rank says which block it needs, if any, and gets the others'
shards of it. A rank that is through with its work goes on answering until all are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.core.errors import RankFailed, need
from dpsrm.gradients.module_state import is_sharded, local, parameters_of, spans, wrapped
from dpsrm.gradients.shards import blocks_of
from dpsrm.mechanisms.wire import Wire

_NONE, _DONE = -1, None


class Lending:
    """This rank's shards, and its way to the others'.

    Guarantee: `fetch` returns the same numbers on every rank, and no rank waits for one that has left: inside of
    `open`, every rank takes part in every round, until none needs anything any more.
    """

    def __init__(self, module: nn.Module) -> None:
        """Find the shards; nothing is said yet."""
        self._module, self._wire = module, Wire()
        self.blocks = blocks_of(module)
        self._device = next(module.parameters()).device
        self._open = False

    def fetch(self, number: int) -> dict[str, Tensor]:
        """A block's parameters, whole."""
        assert self._open, "outside of `open` nobody answers"
        found = self._round(number)
        assert found is not _DONE
        return found

    @contextmanager
    def open(self) -> Iterator[None]:
        """A part of the work in which blocks may be needed; all ranks enter it, and leave it together."""
        self._open = True
        try:
            yield
        except RankFailed:  # nobody is left to be answered
            raise
        except Exception:
            self._answer()
            raise
        else:
            self._answer()
        finally:
            self._open = False

    def _answer(self) -> None:
        """Lend until nobody needs anything."""
        while self._round(_NONE) is not _DONE:
            pass

    @torch.no_grad()
    def _round(self, wish: int) -> dict[str, Tensor] | None:
        """One round: the block this rank wished for (empty if none); nothing if nobody wished for any."""
        wishes = [int(each[0]) for each in self._wire.gather([float(wish)])]
        if all(each == _NONE for each in wishes):
            return _DONE
        pieces = [self._shards(each) for each in wishes]
        sizes = [self._bytes(wish, rank) for rank in range(self._wire.ranks)]
        return self._together(wish, self._wire.swap(pieces, sizes))

    def _shards(self, number: int) -> Tensor:
        """This rank's shards of a block, as bytes."""
        if number == _NONE:
            return torch.empty(0, dtype=torch.uint8, device=self._device)
        parts = (local(p).contiguous().view(-1).view(torch.uint8) for p in self.blocks[number].parameters.values())
        return torch.cat(list(parts))

    def _shape(self, parameter: Any, rank: int) -> tuple[int, list[int]]:
        """Where in its dimension a rank's part begins, and the part's shape."""
        shape, dim = list(parameter.shape), parameter.placements[0].dim
        begin, shape[dim] = spans(shape[dim], self._wire.ranks)[rank]
        return begin, shape

    def _bytes(self, number: int, rank: int) -> int:
        """How many bytes of a block lie on a rank."""
        held = self.blocks[number].parameters.values() if number != _NONE else ()
        return sum(torch.Size(self._shape(p, rank)[1]).numel() * p.element_size() for p in held)

    def _together(self, number: int, found: list[Tensor]) -> dict[str, Tensor]:
        """The parameters of a block from all ranks' bytes."""
        whole: dict[str, Tensor] = {}
        for name, p in (self.blocks[number].parameters if number != _NONE else {}).items():
            whole[name] = torch.empty(p.shape, dtype=p.dtype, device=found[0].device)
            for rank, each in enumerate(found):
                begin, shape = self._shape(p, rank)
                size = torch.Size(shape).numel() * p.element_size()
                part = each[:size].clone().view(p.dtype).view(shape)
                whole[name].narrow(p.placements[0].dim, begin, part.shape[p.placements[0].dim]).copy_(part)  # type: ignore[attr-defined]
                found[rank] = each[size:]
        return whole

    def facts(self) -> str:
        """How everything is sharded, in words: to be the same on all ranks."""
        sharded = [(n, p) for n, p in parameters_of(self._module).items() if is_sharded(p)]
        said = [(n, str(p.placements), p.device_mesh.mesh.tolist()) for n, p in sharded]  # type: ignore[attr-defined]
        return repr([said, [(block.module, list(block.parameters)) for block in self.blocks]])

    def need_supported(self) -> None:
        """Refuse what cannot be put together here, or is not what `fully_shard` would run."""
        held = {name for block in self.blocks for name in block.parameters}
        for name, p in parameters_of(self._module).items():
            need(
                name in held or not is_sharded(p),
                "only parameters that fully_shard sharded can be put together",
                parameter=name,
                remedy="give the module, whole, to torch.distributed.fsdp.fully_shard",
            )
            if name in held:
                self._need_one_mesh(name, p)
        for name, module in wrapped(self._module):
            policy = module._get_fsdp_state()._mp_policy  # type: ignore[operator]
            need(
                policy.param_dtype is None and policy.output_dtype is None,
                "modules run in the type of their parameters: fully_shard's mp_policy would not be followed",
                module=name,
                remedy="leave mp_policy out; convert the frozen parameters themselves, module.to(torch.bfloat16)",
            )

    def _need_one_mesh(self, name: str, parameter: Any) -> None:
        """Refuse shards that do not lie on all ranks, in their order, along one dimension."""
        mesh, placements = parameter.device_mesh, parameter.placements
        plain = len(placements) == 1 and type(placements[0]).__name__ == "Shard"
        need(
            plain and mesh.mesh.tolist() == list(range(self._wire.ranks)),
            "parameters must be sharded over all ranks of the training, along one dimension",
            parameter=name,
            placements=str(placements),
            mesh=mesh.mesh.tolist(),
            remedy="leave mesh out of fully_shard",
        )
