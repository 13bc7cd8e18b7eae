"""The first look at a module, on one example: which parts of it no rule covers, and how much an example records.

What it finds depends on the shape of an example and on the module, not on any example's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsrm.core.errors import DpsrmError, IsolationError, need
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.ghost.recorder import record
from dpsrm.gradients.objective import Objective, Way


@dataclass(frozen=True)
class Look:
    """How to record the module.

    `modules` are left to `torch.func`; None if the whole module is. `reason` says why, and is empty if nothing is left.
    `numbers` is how many numbers one recorded example keeps alive at one point.
    """

    modules: tuple[str, ...] | None
    reason: str = ""
    numbers: int = 0


def look(objective: Objective, point_P: Tensor, one: Batch) -> Look:
    """Record one example and see what leaks; leaking modules are left to `torch.func`, and looked at again."""
    state = torch.get_rng_state()
    try:
        first = record(objective, point_P, one)
        if not first.leaks:
            return Look((), numbers=first.numbers)
        need_rules(objective, first.leaks)
        owners = {name.rpartition(".")[0] for name in first.leaks}
        modules = tuple(sorted(o for o in owners if not any(o.startswith(f"{other}.") for other in owners)))
        reason = f"no rule for the use of {', '.join(first.leaks)}"
        if "" in owners:
            return Look(None, reason)
        trouble = _trouble(objective, point_P, one, modules)
        if trouble:
            return Look(None, trouble)
        named = (f"{name} ({type(objective.module.get_submodule(name)).__name__})" for name in modules)
        return Look(modules, ", ".join(named), record(objective, point_P, one, modules=modules).numbers)
    finally:
        torch.set_rng_state(state)


def need_rules(objective: Objective, leaks: Sequence[str]) -> None:
    """Refuse a batched pass in which a parameter is used as no rule knows: only vmap could help there."""
    if objective.way is Way.BATCH:
        raise IsolationError(
            f'isolation = "checked" needs a rule for every use of a parameter, with the examples in the first '
            f'dimension; there is none for {", ".join(leaks)}; use performance.engine = "loop"'
        )


def _trouble(objective: Objective, point_P: Tensor, one: Batch, modules: Sequence[str]) -> str:
    """Why the modules cannot be left to `torch.func`; empty if they can."""
    try:
        outside = record(objective, point_P, one, modules=modules, cut=True).leaks
        if outside:
            return f"{', '.join(outside)} is used in more than one module"
        for call in record(objective, point_P, one, modules=modules).calls:
            for term in call.terms().values():
                need(len(term.rows()) == 1, "one row per example")
    except (RuntimeError, ValueError, IndexError, DpsrmError) as error:
        return f"{', '.join(modules)}: {error}"
    return ""
