"""The global generators of Python and NumPy, from which a user's code may draw, and their states."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def users_states() -> tuple[Any, Any]:
    """Where the generators stand."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002  (what users' code draws from)


def set_users_states(states: tuple[Any, Any]) -> None:
    """Put the generators where they stood."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def seed_users_generators(seed: int) -> None:
    """Let the generators begin anew."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def users_generators_kept() -> Iterator[Callable[[int], None]]:
    """Inside, the function that is given seeds the generators; at the end they are left as they were.

    >>> before = random.getstate()
    >>> with users_generators_kept() as seed:
    ...     seed(7)
    ...     first = random.random()
    ...     seed(7)
    ...     first == random.random()
    True
    >>> random.getstate() == before
    True
    """
    before = users_states()
    try:
        yield seed_users_generators
    finally:
        set_users_states(before)
