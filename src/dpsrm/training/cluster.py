"""What a step costs on several ranks: bytes sent, memory and seconds of each, from stated rates; arithmetic only.

Symbols: P parameters, b records a step, R ranks, p points of the query (DP-SRM: 2, DP-SGD: 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from dpsrm.core.errors import InputError, need

FLOATS, SUMS = 4, 8
"""Bytes of a parameter (float32) and of a number in a clipped sum (float64)."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the machines can do; every one of them can be given.

    Args:
        flops: of plain forward and backward passes, per second and rank.
        overhead: how many times as long clipped sums take as plain passes.
        normal: seconds per secure normal, rounding included.
        stream: bytes per second at which a rank goes through its memory (the update).
        bandwidth: bytes per second that a rank can send.
        latency: seconds that a message takes however short it is.
    """

    flops: float = 6e10
    overhead: float = 1.2
    normal: float = 9e-9
    stream: float = 7.8e9
    bandwidth: float = 1.25e9
    latency: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse rates with which nothing ever happens."""
        for item in fields(self):
            value = getattr(self, item.name)
            need(0 < value < math.inf, "rates are positive and finite", **{item.name: value})

    def changed(self, text: str) -> Rates:
        """These rates but for what "name=value,name=value" says.

        >>> Rates().changed("normal=1e-9, latency=0.002").latency
        0.002
        """
        known = [item.name for item in fields(self)]
        given: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            need(name.strip() in known, f"rates are {', '.join(known)}", got=part)
            try:
                given[name.strip()] = float(value)
            except ValueError as error:
                raise InputError(f"a rate is a number; got {part!r}; for instance {name}=1e9") from error
        return replace(self, **given)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A model of P parameters whose steps draw b records, on R ranks; `sharded` as in the performance settings."""

    parameters: int
    batch: int
    ranks: int = 1
    sharded: bool = False
    points: int = 2

    def __post_init__(self) -> None:
        """Refuse what is no cluster."""
        for item in ("parameters", "batch", "ranks", "points"):
            value = getattr(self, item)
            need(value >= 1, f"{item} must be 1 or more", **{item: value})


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one rank sends, holds and waits for in one step."""

    bytes_sent: float
    messages: int
    memory: float
    noise_coordinates: int
    passes_s: float
    noise_s: float
    update_s: float
    send_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the step: nothing overlaps."""
        return self.passes_s + self.noise_s + self.update_s + self.send_s


def step_cost(cluster: Cluster, rates: Rates | None = None) -> StepCost:
    """The cost of a step per rank.

    A clipped sum is exchanged in float64 so that every rank ends up with its own P/R coordinates of the total (a
    reduce-scatter), adds the noise of those, and hands them to all others (an all-gather): 2·8·P·(R−1)/R bytes and
    2·(R−1) messages. Ranks that share their memory tell θ (float32) instead of what was released: 12·P·(R−1)/R bytes.
    A rank holds θ, the point before, v and one gradient per point (float32), the sum and its noise (float64); if memory
    is shared, 1/R of v. Records and activations come on top.

    >>> one, two = (step_cost(Cluster(parameters=10**7, batch=256, ranks=r)) for r in (1, 2))
    >>> one.bytes_sent, two.bytes_sent, two.noise_coordinates
    (0.0, 80000000.0, 5000000)
    """
    r, p, ranks = rates or Rates(), cluster.parameters, cluster.ranks
    others = (ranks - 1) / ranks
    own = math.ceil(p / ranks)
    sent = (SUMS + (FLOATS if cluster.sharded else SUMS)) * p * others
    messages = 2 * (ranks - 1)
    states = (3 + cluster.points) * FLOATS
    held = own if cluster.sharded else p
    memory = (states - FLOATS) * p + FLOATS * held + SUMS * p + SUMS * own
    flops = 6.0 * p * cluster.points * math.ceil(cluster.batch / ranks)
    return StepCost(
        bytes_sent=sent,
        messages=messages,
        memory=memory,
        noise_coordinates=own,
        passes_s=r.overhead * flops / r.flops,
        noise_s=own * r.normal,
        update_s=states * held / r.stream,
        send_s=sent / r.bandwidth + messages * r.latency,
    )
