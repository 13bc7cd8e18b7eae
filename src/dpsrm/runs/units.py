"""Whose privacy a run protects, if not one record's: what is public about its units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpsrm.core.errors import need
from dpsrm.core.events import LARGEST, GaussianRelease, Spending

_LONGEST = 200


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
        short = isinstance(self.name, str) and 0 < len(self.name) <= _LONGEST
        need(short, f"a unit has a name of at most {_LONGEST} characters")
        for name in ("count", "rows"):
            value = getattr(self, name)
            need(type(value) is int and 1 <= value <= LARGEST, f"the {name} of a unit is a whole number, 1 or more")

    def to_json(self) -> dict[str, Any]:
        """What the ledger's header says."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ProtectedUnit:
        """What a ledger's header says."""
        return cls(**body)

    def __str__(self) -> str:
        """The same for people."""
        return f"{self.count} units by {self.name}, at most {self.rows} rows of each in a release"

    def problems(self, spending: Spending) -> list[str]:
        """Charges that speak of another number of units."""
        drawn = (c.event.sampling.population for c in spending.charges if isinstance(c.event, GaussianRelease))
        return [f"a release from {n} units, but the header says {self.count}" for n in drawn if n != self.count]


NOT_PROTECTED = """\
## What is not protected

- Several units together (a family, if the unit is a person): the guarantee is for {unit}, one at a time.
- The number of units, N = {count}, and the most rows of one that count, k = {rows}. How many
  rows anyone has is protected.
- The settings in `config.toml`, and what the user declared public (schema, classes, features).
- That the ids are right: two ids of one person are two units.
- Choices made by looking at the data or at earlier runs on it; each run's guarantee adds to the others'.
- Anything in `private/`: exact functions of private records. Do not publish it.
"""
