"""Per-example clipping from recorded passes, without per-example gradients: `GhostEngine`; `rule` teaches it layers."""

from dpsrm.gradients.ghost import convolutions, norms
from dpsrm.gradients.ghost.engine import GhostEngine
from dpsrm.gradients.ghost.rules import rule
from dpsrm.gradients.ghost.terms import Lookup, Outer, Rows
from dpsrm.gradients.ghost.windows import Windows

RULE_FILES = (convolutions, norms)
"""Imported here, so that their rules are known wherever the engine is."""

__all__ = ["GhostEngine", "Lookup", "Outer", "Rows", "Windows", "rule"]
