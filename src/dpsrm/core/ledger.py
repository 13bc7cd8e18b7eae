"""The ledger: an append-only, hash-chained, fsynced file of JSON lines, written before what it charges is released.

Line k is {"body": …, "hash": SHA-256(previous hash ‖ canonical body), "index": k}; line 0's body is the header.
A crash may waste budget (a charge without its release), it can never hide spending.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import DpsrmError, LedgerError
from dpsrm.core.events import Adjacency, Charge, Event, Spending, event_from_json, event_to_json

_GENESIS = "0" * 64
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """The facts a ledger opens with: what is promised, under which adjacency, and how random the run was."""

    adjacency: Adjacency
    epsilon: float | None
    delta: float | None
    accountant: str
    private_randomness: bool

    def to_json(self) -> dict[str, Any]:
        """The header line's body."""
        return {
            "kind": "header",
            "version": _VERSION,
            "adjacency": self.adjacency.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
            "randomness": "secure" if self.private_randomness else "seeded: reproducible, not private",
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Header:
        """Read a header line's body; `LedgerError` if it is not one."""
        if body.get("kind") != "header" or body.get("version") != _VERSION:
            raise LedgerError(f"a ledger opens with a header of version {_VERSION}; got {body!r}")
        try:
            return cls(
                adjacency=Adjacency(body["adjacency"]),
                epsilon=body["epsilon"],
                delta=body["delta"],
                accountant=body["accountant"],
                private_randomness=body["randomness"] == "secure",
            )
        except (KeyError, ValueError) as error:
            raise LedgerError(f"malformed ledger header: {error}") from error


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """What a verified ledger says."""

    header: Header
    spending: Spending
    head: str
    lines: int
    released: int | None
    model_sha256: str | None

    @property
    def closed(self) -> bool:
        """Whether the run ended and wrote its closing line."""
        return self.model_sha256 is not None


class Ledger:
    """The writer's end of a ledger file. Every method returns only after the line is on disk."""

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file (which must not exist) and write the header."""
        self.path = path
        self.header = header
        self.spending = Spending.of([], adjacency=header.adjacency)
        self.head = _GENESIS
        self._lines = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._append(header.to_json())
        _sync_directory(path.parent)

    def charge(self, event: Event, count: int) -> None:
        """Record that up to `count` releases of `event` may follow."""
        charge = Charge(event, count)
        self._append({"kind": "charge", "event": event_to_json(event), "count": count})
        self.spending = self.spending.plus(charge.event, charge.count)

    def close(self, *, released: int, model_sha256: str) -> None:
        """Record how many releases were made and the digest of the model that came out; nothing may follow."""
        self._append({"kind": "close", "released": released, "model_sha256": model_sha256})

    def __enter__(self) -> Ledger:
        """Keep the file open for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file; what is on disk stays as it is."""
        os.close(self._file)

    def _append(self, body: dict[str, Any]) -> None:
        """Write one line and wait until it is on disk."""
        digest = _link(self.head, body)
        line = _canonical({"index": self._lines, "body": body, "hash": digest}) + b"\n"
        try:
            written = os.write(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            raise LedgerError(f"cannot write the ledger {self.path}: {error}; nothing was released") from error
        if written != len(line):
            raise LedgerError(f"the ledger {self.path} took only part of a line (disk full?); nothing was released")
        self.head = digest
        self._lines += 1


def read_ledger(path: Path) -> LedgerFacts:
    """Read a ledger and check every link of its chain; `LedgerError` names the first line that is wrong."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error
    lines = raw.split(b"\n")
    if lines[-1] != b"":
        raise LedgerError(f"{path}: the last line is torn (no line end): a crash, or tampering")
    head = _GENESIS
    bodies: list[dict[str, Any]] = []
    for index, line in enumerate(lines[:-1]):
        body, head = _checked(line, index, head, path)
        bodies.append(body)
    if not bodies:
        raise LedgerError(f"{path}: the ledger is empty")
    return _facts(bodies, head, path)


def _facts(bodies: list[dict[str, Any]], head: str, path: Path) -> LedgerFacts:
    """Turn the verified lines into facts."""
    header = Header.from_json(bodies[0])
    closing = bodies[-1] if bodies[-1].get("kind") == "close" else None
    charges: list[Charge] = []
    for number, body in enumerate(bodies[1 : -1 if closing else None], start=2):
        if body.get("kind") != "charge":
            raise LedgerError(f"{path}, line {number}: expected a charge; got {body.get('kind')!r}")
        try:
            charges.append(Charge(event_from_json(body["event"]), body["count"]))
        except (KeyError, DpsrmError) as error:
            raise LedgerError(f"{path}, line {number}: {error}") from error
    return LedgerFacts(
        header=header,
        spending=Spending.of(charges, adjacency=header.adjacency),
        head=head,
        lines=len(bodies),
        released=closing["released"] if closing else None,
        model_sha256=closing["model_sha256"] if closing else None,
    )


def _checked(line: bytes, index: int, head: str, path: Path) -> tuple[dict[str, Any], str]:
    """One line's body and hash, after checking that it is the canonical text of the next link."""
    where = f"{path}, line {index + 1}"
    try:
        entry = json.loads(line)
        body, digest = entry["body"], entry["hash"]
        expected = _canonical({"index": index, "body": body, "hash": _link(head, body)})
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{where}: not a ledger line ({error}): the ledger was changed") from error
    if line != expected:
        raise LedgerError(f"{where}: the chain is broken: this line or one before it was changed")
    return body, digest


def _link(previous: str, body: dict[str, Any]) -> str:
    """The hash that ties `body` to everything before it."""
    return hashlib.sha256(previous.encode() + _canonical(body)).hexdigest()


def _canonical(value: Any) -> bytes:
    """The one text of a JSON value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sync_directory(path: Path) -> None:
    """Make the directory's entry durable, so that a crash cannot lose the file itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
