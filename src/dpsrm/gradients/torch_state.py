"""What torch keeps for all its code, as a run needs it: precision and generators, put back afterwards, and memory.

Sums are proved for ordinary float32 and float64: nothing shorter may compute them, and no layer that is trained.
Autocast and TF32 round float32 products to 8 or 11 bits, far outside the margin (docs/decisions/rounding.md).
Vectors as long as a large model are made of memory that is used again (docs/decisions/long-vectors.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import need
from dpsrm.core.reused import LONG, buffer

_BACKENDS: Any = torch.backends
_PRODUCTS = (
    *(_BACKENDS.cuda.matmul, _BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn),
    *(_BACKENDS.mkldnn.matmul, _BACKENDS.mkldnn.conv, _BACKENDS.mkldnn.rnn),
)
"""What may compute float32 products with fewer bits, on GPUs and processors."""


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Inside, float32 is float32: autocast, TF32 and bfloat16 products are off, whatever the loop around has chosen.

    torch has an old and a new way to choose, and refuses to tell the old one's state where the new one was used: what
    cannot be asked was never set, and needs no putting back.
    """
    chosen = [each.fp32_precision for each in _PRODUCTS]
    matmul, cudnn = _told(torch.get_float32_matmul_precision), _told(lambda: _BACKENDS.cudnn.allow_tf32)
    _choose("highest", False, ["ieee"] * len(_PRODUCTS))
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        _choose(matmul, cudnn, chosen)


@contextmanager
def precision_kept(device: torch.device) -> Iterator[None]:
    """Around a sum: refuse a module or loss that chose other products for all of torch, the sum's own among them."""
    before = _precision(device)
    yield
    need(
        _precision(device) == before,
        "module and loss must leave torch's precision as they find it: it is that of the clipped sum, too",
        remedy='in forward, "with torch.autocast(…):" around a frozen part; all else before training',
    )


def _precision(device: torch.device) -> tuple[Any, ...]:
    """What float32 products are computed with."""
    return (*(each.fp32_precision for each in _PRODUCTS), torch.is_autocast_enabled(device.type))


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or None if torch refuses it."""
    try:
        return ask()
    except RuntimeError:
        return None


def _choose(matmul: str | None, cudnn: bool | None, products: list[str]) -> None:
    """Choose precisions in the old way (None: leave them), then in the new one."""
    if matmul is not None:
        torch.set_float32_matmul_precision(matmul)
    if cudnn is not None:
        torch.backends.cudnn.allow_tf32 = cudnn
    for each, precision in zip(_PRODUCTS, products, strict=True):
        each.fp32_precision = precision


class AutocastWatch(TorchFunctionMode):
    """Refuses a trained parameter under autocast inside the module; a frozen part may use it."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Watch these parameters."""
        super().__init__()
        self._names = {id(p): name for name, p in parameters.items()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, unless autocast would round what it makes of a trained parameter."""
        given = (*args, *(kwargs or {}).values())
        used = [self._names[id(value)] for value in given if id(value) in self._names]
        if used:
            device = next(value.device.type for value in given if id(value) in self._names)
            need(
                not torch.is_autocast_enabled(device),
                "a trained layer must compute in its own precision, not under autocast",
                parameter=used[0],
                remedy="leave autocast out, or switch it off around trained layers: torch.autocast(…, enabled=False)",
            )
        return func(*args, **(kwargs or {}))


States = tuple[Tensor, ...]


def rng_states() -> States:
    """Where all generators stand: the host's first; reading them does not wait for a GPU."""
    return torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())


def set_rng_states(states: States) -> None:
    """Put all generators where they stood."""
    host, *gpus = states
    torch.set_rng_state(host)
    if gpus:
        torch.cuda.set_rng_state_all(gpus)


def seed_generators(seed: int) -> None:
    """Let all generators begin anew."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave all generators as they were."""
    states = rng_states()
    try:
        yield
    finally:
        set_rng_states(states)


@lru_cache(maxsize=1)
def heap_kept() -> None:
    """Let the C library keep up to 64 MB of what is freed, instead of giving it back in the middle of every step.

    glibc keeps twice the largest array that it has seen freed, if that had at most 32 MB: here it sees one, which is
    never touched. Other libraries, and a glibc that was told a threshold, go on as they are.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


_BLOCK = 2**16
"""Numbers of a long vector that are computed at once: what is computed in between stays in the cache."""


def empty(size: int, like: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """`size` numbers of no particular value, on the device of `like`.

    >>> empty(3, torch.zeros(1), dtype=torch.float64).dtype
    torch.float64
    """
    dtype = dtype or like.dtype
    if not _long(size, like):
        return torch.empty(size, dtype=dtype, device=like.device)
    return torch.from_numpy(buffer(size * dtype.itemsize)).view(dtype)


def zeros(size: int, like: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """`size` zeros, on the device of `like`."""
    return empty(size, like, dtype=dtype).zero_()


def copied(vector: Tensor, *, room: torch.dtype | None = None) -> Tensor:
    """A copy of a vector; at the beginning of as much memory as its numbers would take in the type `room`.

    A pass copies its point, and a float64 sum follows it: with room for that the sum takes the same buffer, instead of
    a second one. Memory that is not written costs nothing: the system hands out pages when they are used.

    >>> copied(torch.ones(2), room=torch.float64)
    tensor([1., 1.])
    """
    whole = empty(len(vector), vector, dtype=room)
    return whole.view(vector.dtype)[: len(vector)].copy_(vector)


def elementwise(function: Callable[..., Tensor], first: Tensor, *others: Tensor) -> Tensor:
    """function(first, *others) for a function that treats every coordinate by itself, of vectors of one length.

    >>> elementwise(torch.add, torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """
    if not _long(len(first), first):
        return function(first, *others)
    vectors = [torch.split(vector, _BLOCK) for vector in (first, *others)]
    found: Tensor | None = None
    for at, block in enumerate(zip(*vectors, strict=True)):
        value = function(*block)
        if found is None:
            found = empty(len(first), first, dtype=value.dtype)
        found[at * _BLOCK : at * _BLOCK + len(value)] = value
    assert found is not None
    return found


def add_to(total: Tensor, more: Tensor) -> None:
    """total += more, without a whole copy of `more` in the type of `total`."""
    if not _long(len(more), more) or more.dtype is total.dtype:
        total += more
        return
    for into, block in zip(torch.split(total, _BLOCK), torch.split(more, _BLOCK), strict=True):
        into += block


def _long(size: int, like: Tensor) -> bool:
    """Whether so many numbers on the device of `like` are worth the trouble."""
    return size * like.dtype.itemsize >= LONG and like.device.type == "cpu"
