"""The ledger: a hash chain of charges, each on disk before what it charges is released.

Line 0's body is the header; then charges; a finished run ends with a closing line that binds all it publishes. Header
and closing line say all of a certificate that the charges do not.
A crash may waste budget (a charge without its release), it can never hide spending.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import DpsrmError, LedgerError, need
from dpsrm.core.events import (
    LARGEST,
    Adjacency,
    Charge,
    Event,
    GaussianRelease,
    Spending,
    ZcdpRelease,
    event_from_json,
    event_to_json,
)
from dpsrm.core.files import GENESIS, Chain, Lines, read_chain
from dpsrm.core.isolation import Isolation

_DIGEST = re.compile("[0-9a-f]{64}")
_LONGEST, _LONGEST_NAME = 10_000, 200
"""Characters that a text in a closing line and the name of a unit may have: they may come from anywhere."""
_UNPRINTED = ("Cc", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that no name has, and that could forge a line of what is printed."""
_VERSION = 2
READ = "read from the records: not covered by the guarantee"
"""What config.toml says of a fact that was not declared, under the fact's name with `_from`."""
_UNDECLARED = ("target_range", "classes", "bounds")
_RANDOMNESS = {True: "secure", False: "seeded: reproducible, not private"}


def one_line(text: str) -> bool:
    """Whether a text, put into a sentence, can neither end its line nor hide a part of it.

    >>> one_line("one visit"), one_line("one visit\\n\\nε = 0.01")
    (True, False)
    """
    return not any(unicodedata.category(character) in _UNPRINTED for character in text)


@dataclass(frozen=True, kw_only=True)
class ProtectedUnit:
    """What one example of a run is.

    Attributes:
        name: the column of ids, or what the user calls it.
        count: N, how many units there are.
        rows: k, how many rows of one unit count at most in one release.
    """

    name: str
    count: int
    rows: int

    def __post_init__(self) -> None:
        """Refuse what no run has: a ledger may come from anywhere."""
        short = isinstance(self.name, str) and 0 < len(self.name) <= _LONGEST_NAME
        need(short, f"a unit has a name of at most {_LONGEST_NAME} characters")
        need(one_line(self.name), "the name of a unit has no control characters and no line ends", name=self.name)
        for name in ("count", "rows"):
            value = getattr(self, name)
            need(type(value) is int and 1 <= value <= LARGEST, f"the {name} of a unit is a whole number, 1 or more")

    def __str__(self) -> str:
        """The same for people."""
        return f"{self.count} units by {self.name}, at most {self.rows} rows of each in a release"

    def problems(self, spending: Spending) -> list[str]:
        """Charges that speak of another number of units."""
        drawn = (c.event.sampling.population for c in spending.charges if isinstance(c.event, GaussianRelease))
        return [f"a release from {n} units, but the header says {self.count}" for n in drawn if n != self.count]


@dataclass(frozen=True, kw_only=True)
class Header:
    """The facts a ledger opens with: what is promised, under which adjacency, and how random the run was.

    Attributes:
        filter_rho: ρ*, fixed beforehand, that the sum of all charges' ρ may not exceed, if the run chooses its releases
            as it goes; its guarantee is that of ρ*-zCDP (core/filter.py). None: the charges were planned.
        unit: what is protected, if not one record.
    """

    adjacency: Adjacency
    epsilon: float | None
    delta: float | None
    accountant: str
    private_randomness: bool
    filter_rho: float | None = None
    unit: ProtectedUnit | None = None

    def to_json(self) -> dict[str, Any]:
        """The header line's body; one that speaks of records says nothing of units."""
        return {
            "kind": "header",
            "version": _VERSION,
            "adjacency": self.adjacency.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
            "randomness": _RANDOMNESS[self.private_randomness],
            "filter_rho": self.filter_rho,
            **({} if self.unit is None else {"unit": asdict(self.unit)}),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Header:
        """Read a header line's body; `LedgerError` if it is not one."""
        if body.get("kind") != "header" or body.get("version") != _VERSION:
            raise LedgerError(f"a ledger opens with a header of version {_VERSION}; got {body!r}")
        try:
            header = cls(
                adjacency=Adjacency(body["adjacency"]),
                epsilon=body["epsilon"],
                delta=body["delta"],
                accountant=body["accountant"],
                private_randomness={word: private for private, word in _RANDOMNESS.items()}[body["randomness"]],
                filter_rho=body["filter_rho"],
                unit=None if "unit" not in body else ProtectedUnit(**body["unit"]),
            )
            header._check()
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"malformed ledger header: {error}") from error
        return header

    def _check(self) -> None:
        """Refuse promises that are none: the file may come from anywhere."""
        both = self.epsilon is None and self.delta is None
        numbers = isinstance(self.epsilon, float | int) and isinstance(self.delta, float | int)
        need(both or numbers, "a header has epsilon and delta, or neither", epsilon=self.epsilon, delta=self.delta)
        need(self.epsilon is None or 0 < self.epsilon < math.inf, "epsilon must be positive", epsilon=self.epsilon)
        need(self.delta is None or 0 < self.delta < 1, "delta must lie between 0 and 1", delta=self.delta)
        need(isinstance(self.accountant, str), "an accountant has a name", accountant=self.accountant)
        if self.filter_rho is not None:
            ZcdpRelease(rho=self.filter_rho)


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What a finished run binds to its chain of charges.

    Attributes:
        released: how many releases were made.
        unit: what one record is, in the words of the certificate.
        isolation: what the sensitivity rests on.
        engine: how the clipped sums were computed.
        files: the SHA-256 of every published file but the ledger, by name.
        planned: all releases of the plan, if the run was stopped before they were made; none otherwise.
        read: facts that are published although they were read from the records uncharged: names in `_UNDECLARED`.
    """

    released: int
    unit: str
    isolation: Isolation
    engine: str
    files: Mapping[str, str]
    planned: tuple[Charge, ...] = ()
    read: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The closing line's body."""
        planned = [[event_to_json(charge.event), charge.count] for charge in self.planned]
        return {
            "kind": "close",
            "released": self.released,
            "unit": self.unit,
            "isolation": self.isolation.value,
            "engine": self.engine,
            "files": dict(self.files),
            **({"planned": planned} if planned else {}),
            **({"read": list(self.read)} if self.read else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Closing:
        """Read a closing line's body; `LedgerError` if it is not one."""
        try:
            closing = cls(
                released=body["released"],
                unit=body["unit"],
                isolation=Isolation(body["isolation"]),
                engine=body["engine"],
                files=dict(body["files"]),
                planned=tuple(Charge(event_from_json(event), count) for event, count in body.get("planned", [])),
                read=tuple(body.get("read", [])),
            )
            if any(name not in _UNDECLARED for name in closing.read):
                raise ValueError(f"a run reads {_UNDECLARED} from records, or nothing")
            texts = (closing.unit, closing.engine, *closing.files)
            good = type(closing.released) is int and all(isinstance(t, str) and len(t) <= _LONGEST for t in texts)
            if not good or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in closing.files.values()):
                raise ValueError("a number, texts and digests are needed")
            if not all(map(one_line, (closing.unit, closing.engine))):
                raise ValueError("what is protected, and the engine, are said in one line")
        except (KeyError, TypeError, ValueError, DpsrmError) as error:
            raise LedgerError(f"malformed closing line: {str(body)[:200]} ({error})") from error
        return closing


def read_from_records(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The facts of which a run's config says that they were read from the records.

    >>> read_from_records({"preprocessing": {"classes": ["a", "b"], "classes_from": READ}})
    ('classes',)
    """
    known = config.get("preprocessing")
    return tuple(name for name in _UNDECLARED if isinstance(known, Mapping) and known.get(f"{name}_from") == READ)


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """What a verified ledger says.

    Attributes:
        links: the hash of each line, which stands for all lines up to it.
        charged: the same without the closing line; a certificate can quote it, and be quoted by the closing line.
        closing: the closing line of a finished run.
    """

    header: Header
    spending: Spending
    links: tuple[str, ...]
    charged: tuple[int, str]
    closing: Closing | None

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self.links)

    @property
    def head(self) -> str:
        """The hash that stands for all of them."""
        return self.links[-1]

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
        self._closed: dict[str, Any] | None = None
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
        """Bind what is published to the charges; nothing may follow, but the same said again, which changes nothing."""
        body = closing.to_json()
        if body != self._closed:
            self._append(body)
            self._closed = body

    def __enter__(self) -> Ledger:
        """Keep the file open for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file; what is on disk stays as it is."""
        self._chain.close()

    def _append(self, body: dict[str, Any]) -> None:
        """Write one line and wait until it is on disk."""
        if self._closed is not None:
            raise LedgerError(f"{self.path} is closed: the run is finished")
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
        links=lines.hashes,
        charged=(before, (GENESIS, *lines.hashes)[before]),
        closing=None if closing is None else Closing.from_json(closing),
    )
