"""Audit a method at a claimed ε: canaries through one research run, a lower bound of ε, and whether it contradicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.accounting.guarantee import rounded_down
from dpsrm.audit.bounds import Bound, one_run, per_step
from dpsrm.audit.prove import quiet
from dpsrm.audit.white_box import Observed, Target, observe
from dpsrm.core.errors import need
from dpsrm.core.secret import Streams
from dpsrm.gradients import PerExampleLoss
from dpsrm.training import Model, loss_for

BOUNDS: dict[str, Callable[..., Bound]] = {"one-run": one_run, "per-step": per_step}
SURE = 1 - 1e-6
"""A claim is called violated only at this confidence: tight bounds exceed the truth once in twenty times at 95 %."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an audit found; `violated` if the claim is refuted with a false-alarm rate of one in a million."""

    target: Target
    observed: Observed
    bound: Bound
    kind: str
    violated: bool
    seconds: float

    def facts(self) -> dict[str, Any]:
        """What `dpsrm audit --json` prints, and a report may quote."""
        plan, bound = self.observed.plan, self.bound
        return {
            "method": self.target.method.name,
            "claimed_epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "lower_bound": bound.epsilon,
            "confidence": bound.confidence,
            "bound": self.kind,
            "assumption_free_bound": bound.strict,
            "violated": self.violated,
            "canaries": bound.canaries,
            "guesses": bound.guesses,
            "right": bound.right,
            "steps": plan.schedule.steps,
            "noise_multiplier": plan.noise_multiplier,
            "sampling": self.target.sampling.value,
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        """One line."""
        b = self.bound
        verdict = "VIOLATED" if self.violated else "not contradicted"
        return (
            f"claimed epsilon {self.target.epsilon:g} at delta {self.target.delta:g}: {verdict}; epsilon is at least "
            f"{rounded_down(b.epsilon, 4)} ({self.kind}, {b.confidence:.0%}; {b.right} of {b.guesses} guesses right "
            f"about {b.canaries} canaries; {self.seconds:.1f} s)"
        )


def audit(
    target: Target,
    *,
    bound: str = "one-run",
    confidence: float = 0.95,
    progress: Callable[[int, int], object] | None = None,
) -> AuditResult:
    """Send canaries through the production sampler, clip, mechanism and method of `target`, and bound ε from below.

    Args:
        bound: "one-run" (whatever canaries have in common) or "per-step" (tighter; takes noise to be independent).

    Guarantee: a true claim is called violated at most once in a million audits.
    """
    need(bound in BOUNDS, f"bound must be one of {', '.join(BOUNDS)}", bound=bound)
    start = time.monotonic()
    with quiet():
        observed = observe(target, progress=progress)
        found = BOUNDS[bound](observed, confidence=confidence)
        many = {"guesses": len(observed.signs_m) // 4} if bound == "one-run" else {}
        sure = BOUNDS[bound](observed, confidence=SURE, **many)
    return AuditResult(
        target=target,
        observed=observed,
        bound=found,
        kind=bound,
        violated=sure.epsilon > target.epsilon * (1 + 1e-6),
        seconds=time.monotonic() - start,
    )


def inner_model(name: str) -> tuple[nn.Module, PerExampleLoss, Tensor, Tensor] | None:
    """A model of the command line beside the canaries, on made-up records; None for "none"."""
    if name == "none":
        return None
    streams = Streams.seeded(0)
    inputs = torch.from_numpy(streams.output.standard_normal((500, 20))).float()
    targets = torch.from_numpy(streams.output.integers(0, 3, 500))
    return Model(kind=name).build(features=20, classes=3, stream=streams.initialisation), loss_for(3), inputs, targets
