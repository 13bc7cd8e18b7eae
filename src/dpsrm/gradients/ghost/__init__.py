"""Per-example clipping from recorded passes, without per-example gradients: `GhostEngine`."""

from dpsrm.gradients.ghost.engine import GhostEngine
from dpsrm.gradients.ghost.rules import rule

__all__ = ["GhostEngine", "rule"]
