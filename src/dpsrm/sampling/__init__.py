"""Which records, and which of their rows, a release looks at."""

from dpsrm.sampling.draw import draw
from dpsrm.sampling.rows import pick_rows

__all__ = ["draw", "pick_rows"]
