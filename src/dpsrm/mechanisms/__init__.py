"""The airlock: the only place where a private sum becomes a public number."""

from dpsrm.mechanisms.airlock import Airlock
from dpsrm.mechanisms.noise import gaussian_noise

__all__ = ["Airlock", "gaussian_noise"]
