"""The closing line of a ledger: everything a certificate says that the charges do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpsrm.core.errors import DpsrmError, LedgerError
from dpsrm.core.events import Charge, event_from_json, event_to_json
from dpsrm.core.isolation import Isolation

_DIGEST = re.compile("[0-9a-f]{64}")
_LONGEST = 10_000
"""Characters a text in a closing line may have: it may come from anywhere."""


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
    """

    released: int
    unit: str
    isolation: Isolation
    engine: str
    files: Mapping[str, str]
    planned: tuple[Charge, ...] = ()

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
            )
            texts = (closing.unit, closing.engine, *closing.files)
            good = type(closing.released) is int and all(isinstance(t, str) and len(t) <= _LONGEST for t in texts)
            if not good or not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in closing.files.values()):
                raise ValueError("a number, texts and digests are needed")
        except (KeyError, TypeError, ValueError, DpsrmError) as error:
            raise LedgerError(f"malformed closing line: {str(body)[:200]} ({error})") from error
        return closing
