"""Shared by the accounting tests: one short way to write a spending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending

Spend = Callable[..., Spending]


@pytest.fixture(scope="session")
def spend() -> Spend:
    """`spend(n, batch, steps, noise, scheme="wor", adjacency="replace-one")`: equal Gaussian releases."""

    def make(
        n: int, batch: int, steps: int, noise: float, scheme: str = "wor", adjacency: str = "replace-one"
    ) -> Spending:
        sampling = Sampling(scheme=Scheme(scheme), population=n, batch=batch)
        release = GaussianRelease(noise_multiplier=float(noise), sampling=sampling)
        return Spending.of([Charge(release, steps)], adjacency=Adjacency(adjacency))

    return make
