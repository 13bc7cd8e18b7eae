"""DP-GD: noisy gradient descent on all records at once (Wang, Ye & Xu 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpsrm.core.errors import need
from dpsrm.methods.sgd import Sgd


@dataclass(frozen=True, kw_only=True)
class Gd(Sgd):
    """Settings of DP-GD: those of DP-SGD; every batch is all n records.

        θ^{t+1} = θ^t − η·(mean over all records of clip(∇f_i(θ^t), C1) + N(0, σ²))

    Guarantee: one record moves the released mean by at most 2·C1/n under replace-one adjacency. The composition of T
    full-batch Gaussians is one Gaussian, so the accounting is exact.

    Departs from the paper: its noise comes from a moments-accountant bound; ours is the exact
    σ = (2·C1/n)·√T/μ of T releases under μ-GDP (`exact_noise`), which is what a tight accountant calibrates to.

    >>> Gd().batch_for(1000)
    1000
    """

    name: ClassVar[str] = "gd"
    summary: ClassVar[str] = "DP-GD: noisy gradient descent on the full batch"
    guarantee: ClassVar[str] = (
        "one record moves each released mean by at most 2*C1/n under replace-one, half of it under add-remove; "
        "Gaussian noise, exact composition"
    )
    use: ClassVar[str] = "small data and convex models, where a step over everything is cheap and little noise matters"

    def batch_for(self, n: int) -> int:
        """Everything."""
        return n


def exact_noise(*, clip: float, n: int, steps: int, mu: float) -> float:
    """σ = (2·C/n)·√T/μ: the noise with which T full-batch releases are together μ-GDP under replace-one adjacency.

    Args:
        clip, n, steps: C1, the number of records, T.
        mu: of the whole run; at δ = 1e-5, ε = 0.2 is μ = 0.06133 and ε = 0.5 is μ = 0.14221.

    Source: Dong, Roth & Su 2022, Cor. 3.3 (the composition of Gaussians).

    >>> round(exact_noise(clip=1.0, n=32561, steps=100, mu=0.14221), 6)
    0.004319
    """
    need(min(clip, n, steps, mu) > 0, "clip, n, steps and mu must be positive", clip=clip, n=n, steps=steps, mu=mu)
    return float(2 * clip / n * steps**0.5 / mu)
