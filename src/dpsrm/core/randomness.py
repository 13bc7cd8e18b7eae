"""Random streams: one secret key, separate ChaCha20 streams for sampling, noise, initialisation, output."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
from randomgen import ChaCha

from dpsrm.core.errors import need


class Streams:
    """The randomness of one run, as independent generators derived from one 256-bit key.

    `Streams.secure()` draws the key from the operating system: the only choice under which the guarantee holds,
    because whoever knows the key can subtract the noise. `Streams.seeded(seed)` is for research: reproducible,
    not private.

    Guarantee: the streams' keys are SHA-256(key ‖ name), so no stream repeats another's numbers.

    >>> Streams.seeded(7).noise.standard_normal() == Streams.seeded(7).noise.standard_normal()
    True
    >>> Streams.secure().private, Streams.seeded(7).private
    (True, False)
    """

    def __init__(self, key: bytes, *, private: bool) -> None:
        """Derive the streams from `key` (32 bytes)."""
        need(len(key) == 32, "a stream key has 32 bytes", length=len(key))
        self.private = private
        self.sampling = _generator(key, "sampling")
        self.noise = _generator(key, "noise")
        self.initialisation = _generator(key, "initialisation")
        self.output = _generator(key, "output")

    @classmethod
    def secure(cls) -> Streams:
        """Streams keyed by the operating system's entropy."""
        return cls(secrets.token_bytes(32), private=True)

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Reproducible streams for research; a run that uses them is not private and says so."""
        need(isinstance(seed, int) and seed >= 0, "a seed is a whole number, 0 or more", seed=seed)
        return cls(hashlib.sha256(f"dpsrm research seed {seed}".encode()).digest(), private=False)

    @classmethod
    def choose(cls, seed: int | None) -> Streams:
        """`secure()` without a seed, `seeded(seed)` with one."""
        return cls.secure() if seed is None else cls.seeded(seed)


def _generator(key: bytes, name: str) -> np.random.Generator:
    """A NumPy generator over ChaCha20 keyed by SHA-256(key ‖ name)."""
    digest = hashlib.sha256(key + name.encode()).digest()
    return np.random.Generator(ChaCha(key=int.from_bytes(digest, "little"), rounds=20))
