"""The generators that layers draw from: torch's own on the host, and those of the GPUs where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

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
