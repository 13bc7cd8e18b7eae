"""The airlock: the only place where a private sum becomes a public number."""

from dpsrm.mechanisms.airlock import Airlock, zcdp_multiplier
from dpsrm.mechanisms.noisy_min import Selection

__all__ = ["Airlock", "Selection", "zcdp_multiplier"]
