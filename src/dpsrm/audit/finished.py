"""A membership test of a finished run: its records against records that were left out of it by coin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsrm.audit.one_run import one_run_epsilon
from dpsrm.core.errors import need
from dpsrm.training import load_run


@dataclass(frozen=True, kw_only=True)
class FinishedAudit:
    """What the published model tells about who was in its data."""

    claimed: float
    delta: float
    lower_bound: float
    members: int
    others: int
    guesses: int
    right: int

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "claimed_epsilon": self.claimed,
            "delta": self.delta,
            "lower_bound": self.lower_bound,
            "confidence": 0.95,
            "bound": "one-run, membership",
            "violated": self.lower_bound > self.claimed,
            "members": self.members,
            "others": self.others,
            "guesses": self.guesses,
            "right": self.right,
        }


def audit_run(run: Path, data: Path, against: Path | None) -> FinishedAudit:
    """Guess from the model's confidence who was in a finished run's data.

    Args:
        data: records it was trained on.
        against: records that could have been, and were left out: by a fair coin each, or the bound means nothing.

    Edge cases: refused without `against`, for regression, and for runs without a guarantee: nothing can be said.
    """
    need(
        against is not None,
        "a finished run can only be audited against records that were left out of it by coin",
        remedy="give --against FILE; or audit the method: dpsrm audit --method NAME --epsilon E",
    )
    assert against is not None
    loaded = load_run(run)
    guarantee = loaded.guarantee
    need(guarantee is not None, "this run promises nothing that could be audited", run=str(run))
    assert guarantee is not None
    need(bool(loaded.classes), "a membership test needs the confidence of a classifier")
    inside, outside = (loaded.predict_proba(path).max(axis=1) for path in (data, against))
    scores = np.concatenate([inside, outside])
    coins = np.concatenate([np.ones(len(inside)), -np.ones(len(outside))])
    m = len(scores)
    r = max(2, m // 10) // 2
    order = np.argsort(scores, kind="stable")
    right = int((coins[order[-r:]] == 1).sum() + (coins[order[:r]] == -1).sum())
    bound = one_run_epsilon(m=m, r=2 * r, v=right, delta=guarantee.delta)
    return FinishedAudit(
        claimed=guarantee.epsilon,
        delta=guarantee.delta,
        lower_bound=bound,
        members=len(inside),
        others=len(outside),
        guesses=2 * r,
        right=right,
    )
