"""Per-example clipping from recorded passes, without per-example gradients: `GhostEngine`; `rule` teaches it layers."""

from dpsrm.gradients.ghost.engine import GhostEngine
from dpsrm.gradients.ghost.rules import rule
from dpsrm.gradients.ghost.terms import Lookup, Outer, Rows, Windows

__all__ = ["GhostEngine", "Lookup", "Outer", "Rows", "Windows", "rule"]
