"""What torch keeps for all its code, as a run needs it and put back afterwards: precision, and generators.

Sums are proved for ordinary float32 and float64: nothing shorter may compute them, and no layer that is trained.
Autocast and TF32 round float32 products to 8 or 11 bits, far outside the margin (docs/decisions/rounding.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import need


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Inside, float32 is float32: autocast and TF32 are off, whatever the loop around has chosen."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


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
