"""The user's code that reads one record (a dataset, a collate function), kept apart from what it did for others.

Random crops, masks and flips draw from generators that all records share: how much one record draws would decide what
the next one becomes. So each record is read with random numbers of its own, and what comes back is copied at once,
because the next record may be written into the same memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsrm.core.users_generators import users_generators_kept

_READING: ContextVar[int] = ContextVar("reading", default=0)
"""Which reading of the records this is: each has other random numbers."""


@contextmanager
def reading(seed: int) -> Iterator[None]:
    """Inside, records are read with the random numbers of this reading; with the same seed, the same ones again."""
    token = _READING.set(seed)
    try:
        yield
    finally:
        _READING.reset(token)


@contextmanager
def numbers_of_its_own() -> Iterator[Callable[[int], None]]:
    """Inside, the function that is given starts the random numbers of the record at a position.

    They come from the global generators of torch, NumPy and Python, which are left as they were at the end: what they
    give afterwards does not depend on any record either.
    """
    seed, gpus = _READING.get(), bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    before, before_gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all() if gpus else []

    def start(position: int) -> None:
        own = int.from_bytes(hashlib.sha256(f"{seed} {position}".encode()).digest()[:8], "little") >> 1
        torch.default_generator.manual_seed(own)
        if gpus:
            torch.cuda.manual_seed_all(own)
        seed_users(own)

    try:
        with users_generators_kept() as seed_users:
            yield start
    finally:
        torch.set_rng_state(before)
        if gpus:
            torch.cuda.set_rng_state_all(before_gpus)


def by_value(part: Any) -> Any:
    """A record as it is now: copies of its arrays and tensors, whatever is written into them later.

    >>> kept = torch.zeros(2)
    >>> record = by_value((kept, {"label": 1}))
    >>> kept += 1
    >>> record
    (tensor([0., 0.]), {'label': 1})
    """
    if isinstance(part, Tensor):
        return part.clone()
    if isinstance(part, np.ndarray):
        return part.copy()
    if isinstance(part, Mapping):
        return {name: by_value(value) for name, value in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*map(by_value, part))
    if isinstance(part, tuple):
        return tuple(map(by_value, part))
    if isinstance(part, Sequence) and not isinstance(part, (str, bytes)):
        return list(map(by_value, part))
    return part
