"""The first look at a module, on one example: whether it can be recorded, and how much an example records.

What it finds depends on the shape of an example and on the module, not on any example's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsrm.core.errors import DpsrmError, IsolationError
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.ghost.recording import record
from dpsrm.gradients.objective import Objective, Way


@dataclass(frozen=True)
class Look:
    """Whether the module can be recorded; `reason` says why not, and is empty if it can.

    `numbers` is how many numbers one recorded example keeps alive at one point.
    """

    reason: str = ""
    numbers: int = 0


def look(objective: Objective, point_P: Tensor, one: Batch) -> Look:
    """Record one example and see what leaks."""
    state = torch.get_rng_state()
    try:
        first = record(objective, point_P, one)
        if first.leaks:
            need_rules(objective, first.leaks)
            return Look(f"no rule for the use of {', '.join(first.leaks)}")
        for found in first.terms().values():
            [term.rows() for term in found if len(found) > 1]
    except IsolationError as error:
        if objective.way is not Way.VMAP:
            raise
        return Look(_short(error))
    except DpsrmError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        return Look(_short(error))
    finally:
        torch.set_rng_state(state)
    return Look(numbers=first.numbers)


def _short(error: Exception) -> str:
    """The beginning of what went wrong."""
    return str(error.__cause__ or error)[:200]


def need_rules(objective: Objective, leaks: Sequence[str]) -> None:
    """Refuse a batched pass in which a parameter is used as no rule knows: only vmap could help there."""
    if objective.way is Way.BATCH:
        raise IsolationError(
            f'isolation = "checked" needs a rule for every use of a parameter, with the examples in the first '
            f'dimension; there is none for {", ".join(leaks)}; use performance.engine = "loop"'
        )
