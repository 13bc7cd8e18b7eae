"""The ledger among ranks: the leader writes it, the others release only what it says is charged."""

from __future__ import annotations

import json
from typing import Any

from dpsrm.core.errors import LedgerError, RankFailed
from dpsrm.core.events import Charge, Event, Spending, event_from_json, event_to_json
from dpsrm.mechanisms.wire import Wire
from dpsrm.runs.book import PositionedBook
from dpsrm.runs.ledger import Closing, Header


class LeadingBook:
    """The leader's ledger, which lets the other ranks go on once a charge is on disk."""

    def __init__(self, ledger: PositionedBook, wire: Wire) -> None:
        """Tell what was charged before."""
        self._ledger, self._wire, self.header = ledger, wire, ledger.header
        self._say([[event_to_json(charge.event), charge.count] for charge in self.spending.charges])

    @property
    def spending(self) -> Spending:
        """What is charged."""
        return self._ledger.spending

    @property
    def position(self) -> tuple[int, str]:
        """Lines and head of the ledger."""
        return self._ledger.position

    def charge(self, event: Event, count: int) -> None:
        """Write the charge; then, when it is on disk, tell the others. If it cannot be written, that."""
        try:
            self._ledger.charge(event, count)
        except Exception:
            self._say(None)
            raise
        self._say([[event_to_json(event), count]])

    def close(self, closing: Closing) -> None:
        """Close the ledger."""
        self._ledger.close(closing)

    def _say(self, charges: list[Any] | None) -> None:
        """Tell what was charged, and where the ledger stands."""
        self._wire.tell(json.dumps([charges, *self.position]).encode())


class FollowingBook:
    """What another rank than the leader knows of the ledger: what the leader says is on disk.

    Guarantee: `charge` returns only after the leader has written that very charge.
    """

    def __init__(self, header: Header, wire: Wire) -> None:
        """Hear what was charged before."""
        self.header, self._wire = header, wire
        self.position = (0, "")
        self.spending = Spending.of(self._hear(), adjacency=header.adjacency)

    def charge(self, event: Event, count: int) -> None:
        """Wait until the leader has charged the same."""
        heard, wanted = self._hear(), Charge(event, count)
        if heard != [wanted]:
            raise LedgerError(f"the ledger charges {heard}, this rank was to release {wanted}; nothing was released")
        self.spending = self.spending.plus(event, count)

    def close(self, closing: Closing) -> None:
        """Never: the leader closes its ledger."""
        raise AssertionError(closing)

    def _hear(self) -> list[Charge]:
        """What the leader has charged; where its ledger stands now."""
        charges, lines, head = json.loads(self._wire.tell(None))
        if charges is None:
            raise RankFailed("the leader could not write its charge; nothing was released")
        self.position = lines, head
        return [Charge(event_from_json(event), count) for event, count in charges]
