"""Per-example clipping from recorded passes, without per-example gradients: `GhostEngine`."""

from dpsrm.gradients.ghost.engine import GhostEngine

__all__ = ["GhostEngine"]
