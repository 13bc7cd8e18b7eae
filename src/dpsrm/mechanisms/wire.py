"""What the processes of one training say to each other: a thin coat over torch.distributed, with plain errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpsrm.core.errors import RankFailed

_TEXT = 512
"""Bytes of another rank's error that are quoted."""


class Wire:
    """The ranks of the process group that is initialised, in their order; rank 0 leads.

    Guarantee: what `swap` hands over arrives bit for bit; it adds nothing up, so no order of additions is left to the
    network. Everything, the run's key included, travels as it is: the network between the ranks must be trusted.
    """

    def __init__(self) -> None:
        """Find out which rank this is."""
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Everybody's numbers, as many from each, in the order of the ranks."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.ranks)]
        with _explained():
            dist.all_gather(found, mine, group=_words())
        return [each.tolist() for each in found]

    def tell(self, content: bytes | None) -> bytes:
        """What rank 0 says."""
        said = content if self.rank == 0 and content is not None else b""
        length = int(self.gather([float(len(said))])[0][0])
        packed = torch.frombuffer(bytearray(said or bytes(length or 1)), dtype=torch.uint8).clone()
        with _explained():
            dist.broadcast(packed, src=0, group=_words())
        return bytes(packed[:length].tolist()) if self.rank else said

    def swap(self, pieces: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Give pieces[r] to rank r; what each rank has for this one, of `sizes` numbers."""
        direct = dist.get_backend() == "nccl"
        sent = torch.cat(list(pieces)) if direct else torch.cat(list(pieces)).cpu()
        found = torch.empty(sum(sizes), dtype=sent.dtype, device=sent.device)
        with _explained():
            dist.all_to_all_single(found, sent, list(sizes), [len(piece) for piece in pieces])
        return [each.to(pieces[0].device) for each in torch.split(found, list(sizes))]

    def same(self, tensor: Tensor) -> None:
        """Let `tensor` be rank 0's, on every rank."""
        direct = dist.get_backend() == "nccl"
        moved = tensor if direct else tensor.cpu().contiguous()
        with _explained():
            dist.broadcast(moved, src=0, group=None if direct else _words())
        tensor.copy_(moved)

    @contextmanager
    def together(self, unsaid: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Come out of the block all, or none: what stops one rank in it, panics and interrupts too, stops the others
        with its words; but for what is `unsaid`, of which they hear when this process ends.
        """
        try:
            yield
        except unsaid:
            raise
        except BaseException as error:
            with suppress(RankFailed):  # that the others are gone says less than this rank's own error
                self.report(error, [each[0] for each in self.gather([1.0])])
            raise
        self.report(None, [each[0] for each in self.gather([0.0])])

    def report(self, failure: BaseException | None, failed: Sequence[float]) -> None:
        """Raise this rank's failure, or `RankFailed` with the words of the first that failed."""
        if not any(failed):
            return
        words = "" if failure is None else str(failure) or type(failure).__name__
        said = words.encode()[:_TEXT].ljust(_TEXT, b"\0")
        texts = self.gather([float(byte) for byte in said])
        if failure is not None:
            raise failure
        first = next(rank for rank, flag in enumerate(failed) if flag)
        words = bytes(int(byte) for byte in texts[first]).rstrip(b"\0").decode(errors="replace")
        raise RankFailed(f"rank {first} stopped: {words}")


@contextmanager
def _explained() -> Iterator[None]:
    """Say in one line that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())[:200]
        raise RankFailed(f"another rank ended or cannot be reached ({words}); the run can be resumed") from error


def _words() -> Any:
    """The group over which words travel: the default one, or beside nccl, which knows GPUs only, one of gloo."""
    return None if dist.get_backend() == "gloo" else _beside(dist.group.WORLD)


@lru_cache(maxsize=1)
def _beside(_: Any) -> Any:
    """A gloo group of all ranks."""
    return dist.new_group(backend="gloo")
