"""The ledger: a hash chain of charges, each on disk before what it charges is released.

Line 0's body is the header; then charges; a finished run ends with a closing line that binds all it publishes.
A crash may waste budget (a charge without its release), it can never hide spending.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.chain import GENESIS, Chain, Lines, read_chain
from dpsrm.core.errors import DpsrmError, LedgerError
from dpsrm.core.events import Charge, Event, Spending, event_from_json, event_to_json
from dpsrm.runs.entries import Closing, Header


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """What a verified ledger says.

    Attributes:
        lines, head: how many lines there are, and the hash that stands for all of them.
        charged: the same without the closing line; a certificate can quote it, and be quoted by the closing line.
        closing: the closing line of a finished run.
    """

    header: Header
    spending: Spending
    lines: int
    head: str
    charged: tuple[int, str]
    closing: Closing | None

    @property
    def closed(self) -> bool:
        """Whether the run ended and wrote its closing line."""
        return self.closing is not None

    @property
    def released(self) -> int | None:
        """How many releases a finished run made."""
        return None if self.closing is None else self.closing.released


class Ledger:
    """The writer's end of a ledger file. Every method returns only after the line is on disk."""

    def __init__(self, path: Path, header: Header, *, chain: Chain | None = None) -> None:
        """Create the file (which must not exist) and write the header; `reopen` goes on with an existing one."""
        self.path = path
        self.header = header
        self.spending = Spending.of([], adjacency=header.adjacency)
        self._chain = chain or Chain.create(path)
        if chain is None:
            self._chain.append(header.to_json())

    @classmethod
    def reopen(cls, path: Path, header: Header, *, after: tuple[int, str]) -> Ledger:
        """Go on with the ledger of a run that was interrupted.

        Args:
            after: how many lines a checkpoint saw, and the hash of the last of them; the ledger must extend them.

        Guarantee: the chain was verified and opens with `header`. A last line that only lost its line end counts, and
        gets it back. One that is torn is cut off: its charge was never completed, so nothing was released from it.

        Edge cases: a closed ledger, and one that another process is writing, are refused; a file in which not even the
        header was completed is begun anew.
        """
        chain, lines = Chain.reopen(path)
        try:
            if not lines.extends(*after):
                raise LedgerError(f"{path} does not extend the ledger this run wrote: it was cut off or exchanged")
            if not lines.bodies:
                chain.append(header.to_json())
                return cls(path, header, chain=chain)
            facts = _facts(lines, path)
            if facts.closed:
                raise LedgerError(f"{path} is closed: the run is finished")
            if facts.header != header:
                raise LedgerError(f"{path} opens with {facts.header}; the run's plan says {header}")
            chain.mend()
        except BaseException:
            chain.close()
            raise
        ledger = cls(path, header, chain=chain)
        ledger.spending = facts.spending
        return ledger

    @property
    def position(self) -> tuple[int, str]:
        """How many lines are on disk, and the hash of the last one."""
        return self._chain.count, self._chain.head

    def charge(self, event: Event, count: int) -> None:
        """Record that up to `count` releases of `event` may follow."""
        charge = Charge(event, count)
        self._append({"kind": "charge", "event": event_to_json(event), "count": count})
        self.spending = self.spending.plus(charge.event, charge.count)

    def close(self, closing: Closing) -> None:
        """Bind what is published to the charges; nothing may follow."""
        self._append(closing.to_json())

    def __enter__(self) -> Ledger:
        """Keep the file open for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file; what is on disk stays as it is."""
        self._chain.close()

    def _append(self, body: dict[str, Any]) -> None:
        """Write one line and wait until it is on disk."""
        self._chain.append(body)


def read_ledger(path: Path, *, torn: bool = False) -> LedgerFacts:
    """Read a ledger and check every link of its chain; `LedgerError` names the first line that is wrong.

    Args:
        torn: leave out a last line that a crash cut off (nothing was released from it), and count one that only lost
            its line end (something may have been), instead of refusing both.
    """
    return _facts(read_chain(path, torn=torn), path)


def mend_ledger(path: Path) -> None:
    """Give a ledger whose last line only lost its line end that line end back."""
    chain, _ = Chain.reopen(path)
    try:
        chain.mend()
    finally:
        chain.close()


def _facts(lines: Lines, path: Path) -> LedgerFacts:
    """Turn the verified lines into facts."""
    if not lines.bodies:
        raise LedgerError(f"{path}: the ledger is empty")
    header = Header.from_json(lines.bodies[0])
    closing = lines.bodies[-1] if lines.bodies[-1].get("kind") == "close" else None
    charges: list[Charge] = []
    for number, body in enumerate(lines.bodies[1 : -1 if closing else None], start=2):
        if body.get("kind") != "charge":
            raise LedgerError(f"{path}, line {number}: expected a charge; got {str(body.get('kind'))[:40]!r}")
        try:
            charges.append(Charge(event_from_json(body["event"]), body["count"]))
        except (KeyError, DpsrmError) as error:
            raise LedgerError(f"{path}, line {number}: {error}") from error
    before = len(lines.bodies) - (closing is not None)
    return LedgerFacts(
        header=header,
        spending=Spending.of(charges, adjacency=header.adjacency),
        lines=len(lines.bodies),
        head=lines.head,
        charged=(before, (GENESIS, *lines.hashes)[before]),
        closing=None if closing is None else Closing.from_json(closing),
    )
