"""Per-example gradients, clipped and summed: engines that answer a `Query`."""

from collections.abc import Callable

from dpsrm.core.errors import need
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.functional import FunctionalEngine
from dpsrm.gradients.ghost import GhostEngine
from dpsrm.gradients.linear import LinearEngine
from dpsrm.gradients.loop import LoopEngine
from dpsrm.gradients.losses import clipped_losses
from dpsrm.gradients.module_state import Layout
from dpsrm.gradients.objective import Objective, Way, as_losses
from dpsrm.gradients.passes import ModelLosses, PerExampleLoss
from dpsrm.gradients.query import ClipRule, Engine, Excess, Part, Query
from dpsrm.gradients.standard_losses import CLOSED_FORMS, binary_loss, multiclass_loss, squared_loss

ENGINES: dict[str, Callable[..., Engine]] = {
    "linear": LinearEngine,
    "ghost": GhostEngine,
    "functional": FunctionalEngine,
    "loop": LoopEngine,
}
AUTO = "auto"
STANDARD_LOSSES = frozenset(CLOSED_FORMS)
"""Losses of (outputs, targets) that this package brings."""
_IN_PIECES = ("ghost", "functional")
"""Engines whose memory grows with the batch, and which therefore take it in pieces."""


def engine(
    name: str,
    objective: Objective,
    *,
    max_physical_batch: int | None = None,
    steady: bool = True,
    expected: int | None = None,
) -> Engine:
    """The engine called `name` for `objective`; "auto" is the fastest that applies: linear, or ghost for all else.

    Args:
        max_physical_batch: how many examples to hold in memory at once; None lets the engine choose.
        steady: whether a neighbouring dataset leaves all other examples in their places. Only replace-one does, and
            only if all records that could be there have one shape (no source of `Ragged` batches).
        expected: a public size of a batch, the expected one for instance; unless `steady`, it only makes small
            batches cheaper.
    """
    need(name in ENGINES or name == AUTO, f"the engine must be one of {AUTO}, {', '.join(ENGINES)}", engine=name)
    fastest = "linear" if LinearEngine.applies(objective) else "ghost"
    chosen = fastest if name == AUTO else name
    alone = objective.way is not Way.LOOP or chosen in ("loop", "linear")
    need(alone, "this engine runs examples side by side", engine=chosen, remedy="make the objective with another way")
    if chosen in _IN_PIECES:
        return ENGINES[chosen](objective, max_physical_batch=max_physical_batch, steady=steady, expected=expected)
    return ENGINES[chosen](objective, steady=steady)


__all__ = [
    "AUTO",
    "ENGINES",
    "STANDARD_LOSSES",
    "Batch",
    "ClipRule",
    "Engine",
    "Excess",
    "FunctionalEngine",
    "GhostEngine",
    "Layout",
    "LinearEngine",
    "LoopEngine",
    "ModelLosses",
    "Objective",
    "Part",
    "PerExampleLoss",
    "Query",
    "Way",
    "as_losses",
    "binary_loss",
    "clipped_losses",
    "engine",
    "multiclass_loss",
    "squared_loss",
]
