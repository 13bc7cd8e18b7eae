"""Where charges are written: a ledger file, or memory for research trials."""

from __future__ import annotations

from typing import Protocol

from dpsrm.core.errors import need
from dpsrm.core.events import Charge, Event, Spending
from dpsrm.runs.ledger import Closing, Header


class Book(Protocol):
    """What an airlock needs of a ledger."""

    header: Header

    @property
    def spending(self) -> Spending:
        """What is charged."""

    def charge(self, event: Event, count: int) -> None:
        """Record that up to `count` releases of `event` may follow."""


class PositionedBook(Book, Protocol):
    """A book that knows where its ledger stands."""

    @property
    def position(self) -> tuple[int, str]:
        """How many lines are on disk, and the hash of the last one."""

    def close(self, closing: Closing) -> None:
        """Bind what is published to the charges; nothing may follow."""


class MemoryBook:
    """Charges kept in memory: for reproducible research, which is not private anyway.

    Guarantee: none against a crash; that is why it refuses the header of a run with secret randomness.
    """

    def __init__(self, header: Header) -> None:
        """Open with nothing charged."""
        need(
            not header.private_randomness,
            "a private run charges a ledger on disk",
            remedy="give a seed (research), or use train",
        )
        self.header = header
        self.spending = Spending.of([], adjacency=header.adjacency)

    def charge(self, event: Event, count: int) -> None:
        """Record that up to `count` releases of `event` may follow."""
        charge = Charge(event, count)
        self.spending = self.spending.plus(charge.event, charge.count)
