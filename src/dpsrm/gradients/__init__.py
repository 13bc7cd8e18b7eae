"""Per-example gradients, clipped and summed: engines that answer a `Query`."""

from collections.abc import Callable

from dpsrm.core.errors import need
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost import GhostEngine
from dpsrm.gradients.loop import LoopEngine
from dpsrm.gradients.losses import clipped_losses
from dpsrm.gradients.objective import Layout, Objective, PerExampleLoss
from dpsrm.gradients.query import ClipRule, Engine, Excess, Part, Query

ENGINES: dict[str, Callable[[Objective], Engine]] = {
    "ghost": GhostEngine,
    "functional": FunctionalEngine,
    "loop": LoopEngine,
}


def engine(name: str, objective: Objective) -> Engine:
    """The engine called `name` for `objective`."""
    need(name in ENGINES, f"the engine must be one of {', '.join(ENGINES)}", engine=name)
    return ENGINES[name](objective)


__all__ = [
    "ENGINES",
    "ClipRule",
    "Engine",
    "Excess",
    "FunctionalEngine",
    "GhostEngine",
    "Layout",
    "LoopEngine",
    "Objective",
    "Part",
    "PerExampleLoss",
    "Query",
    "clipped_losses",
    "engine",
]
