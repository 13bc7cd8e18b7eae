"""Per-example gradients, clipped and summed: engines that answer a `Query`."""

from collections.abc import Callable

from dpsrm.core.errors import need
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.linear import LinearEngine
from dpsrm.gradients.loop import LoopEngine
from dpsrm.gradients.losses import clipped_losses
from dpsrm.gradients.objective import Layout, Objective, PerExampleLoss
from dpsrm.gradients.query import ClipRule, Engine, Excess, Part, Query
from dpsrm.gradients.standard_losses import binary_loss, multiclass_loss, squared_loss

ENGINES: dict[str, Callable[[Objective], Engine]] = {
    "functional": FunctionalEngine,
    "linear": LinearEngine,
    "loop": LoopEngine,
}
AUTO = "auto"


def engine(name: str, objective: Objective) -> Engine:
    """The engine called `name` for `objective`; "auto" is the fastest that applies: linear, ghost, functional."""
    need(name in ENGINES or name == AUTO, f"the engine must be one of {AUTO}, {', '.join(ENGINES)}", engine=name)
    return ENGINES[_fastest(objective) if name == AUTO else name](objective)


def _fastest(objective: Objective) -> str:
    """The name of the fastest engine for `objective`."""
    if LinearEngine.applies(objective):
        return "linear"
    return "ghost" if "ghost" in ENGINES else "functional"


__all__ = [
    "AUTO",
    "ENGINES",
    "ClipRule",
    "Engine",
    "Excess",
    "FunctionalEngine",
    "Layout",
    "LinearEngine",
    "LoopEngine",
    "Objective",
    "Part",
    "PerExampleLoss",
    "Query",
    "binary_loss",
    "clipped_losses",
    "engine",
    "multiclass_loss",
    "squared_loss",
]
