"""RRPSGD: single-example noisy SGD for a random number of rounds drawn beforehand (Zhang, Zheng, Mou & Wang 2017).

Line numbers in comments are those of their Algorithm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from dpsrm.core.errors import need
from dpsrm.gradients import ClipRule
from dpsrm.methods.method import Method, Schedule, need_positive
from dpsrm.methods.postprocessing import Stepper
from dpsrm.methods.sgd import Sgd, SgdWalk


@dataclass(frozen=True, kw_only=True)
class Rrpsgd(Method):
    """Settings of RRPSGD.

        R uniform on {1, …, T};  for t < R: θ^{t+1} = θ^t − η·(clip(∇f_i(θ^t), C1) + noise), i uniform;  output θ^R

    Args:
        max_grad_norm: C1 (their Lipschitz constant G).
        clip: "flat" or "auto" (AUTO-S).

    Guarantee: one record moves each release by at most 2·C1 under replace-one adjacency and takes part with
    probability 1/n. R is drawn before any record is seen, so it is public. The noise is calibrated to T releases, as
    theirs is, and R ≤ T are made and charged.

    Edge cases: with constant steps their distribution P(R = k) ∝ 2η_k − L·η_k² is uniform. The number of rounds varies
    from run to run, the noise does not. With Poisson sampling a round looks at one example on average.

    Departs from the paper: noise from our accountant instead of `papers_noise` (which `Privacy.noise_multiplier` can
    still take), T from the training settings instead of n².

    Source: Zhang et al. 2017, Algorithm 2; the random round is Ghadimi & Lan 2013.

    >>> Rrpsgd().rounds(10, np.random.default_rng(0)) in range(1, 11)
    True
    """

    name: ClassVar[str] = "rrpsgd"
    summary: ClassVar[str] = "RRPSGD: single-example noisy SGD for a random number of rounds drawn beforehand"
    guarantee: ClassVar[str] = (
        "one record moves a release by at most 2*C1 under replace-one, half of it under add-remove, and takes part "
        "with probability 1/n; Gaussian noise, amplified by sampling"
    )
    use: ClassVar[str] = "only to compare with: one example per release wastes almost everything"
    output: ClassVar[str] = "last"

    max_grad_norm: float = 1.0
    clip: ClipRule = ClipRule.FLAT

    def __post_init__(self) -> None:
        """Refuse settings that are not a method."""
        need_positive(max_grad_norm=self.max_grad_norm)
        object.__setattr__(self, "clip", ClipRule(self.clip))

    def batch_for(self, n: int) -> int:
        """One example."""
        return 1

    def rounds(self, steps: int, stream: np.random.Generator) -> int:
        """R, uniform on 1 … steps (line 1)."""
        return int(stream.integers(1, steps, endpoint=True))

    def unclipped(self) -> Rrpsgd:
        """Single-example SGD for a random number of rounds."""
        return replace(self, max_grad_norm=math.inf, clip=ClipRule.FLAT)

    def begin(self, theta: Tensor, *, schedule: Schedule, stepper: Stepper) -> SgdWalk:
        """Start from θ⁰; every round is a step of DP-SGD over one example (lines 2–6)."""
        return SgdWalk(Sgd(max_grad_norm=self.max_grad_norm, clip=self.clip), theta, schedule, stepper)


def papers_noise(*, n: int, epsilon: float, delta: float) -> float:
    """The noise multiplier s = σ/(2G) by amplification and strong composition, as the authors of RRPSGD use them.

        σ² = 32·G²·ln(n/δ)·ln(1/δ)/ε²     for up to T = n² rounds

    Args:
        n: the number of records.
        epsilon, delta: the budget; the derivation needs ε ≤ 1.

    Guarantee: (ε, δ)-DP for ε ≤ 1 and at most n² rounds by their theorem. To run with it, give it as
    `Privacy.noise_multiplier`; our accountant then says what it really costs, which is far less than ε.

    Edge cases: it does not fall with fewer rounds, because the amplification lemma needs every round's own ε to be
    small; that alone makes it hopeless for a few passes over the data.

    Source: the constant is that of Bassily, Smith & Thakurta 2014, Algorithm 1, whose analysis Zhang et al. reuse.

    >>> round(papers_noise(n=1000, epsilon=0.5, delta=1e-5), 1)
    82.4
    """
    need(0 < epsilon <= 1, "the derivation needs epsilon in (0, 1]", epsilon=epsilon)
    need(0 < delta < 1, "delta must lie strictly between 0 and 1", delta=delta)
    need(n >= 1, "n must be 1 or more", n=n)
    sigma_over_G = math.sqrt(32 * math.log(n / delta) * math.log(1 / delta)) / epsilon
    return sigma_over_G / 2
