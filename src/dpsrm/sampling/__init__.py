"""Draw batches: fresh, secret, in time proportional to the batch."""

from dpsrm.sampling.draw import draw

__all__ = ["draw"]
