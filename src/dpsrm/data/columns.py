"""The kinds of columns a schema can declare, each with what is public about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from dpsrm.core.errors import InputError


@dataclass(frozen=True)
class Number:
    """A column of numbers in [min, max]; what lies outside is clamped. With `knots`, a model can bend at as many
    places, evenly spaced from min to max; without, it is linear in the number."""

    name: str
    min: float
    max: float
    knots: int | None = None


@dataclass(frozen=True)
class Category:
    """A column of texts; what is not in `values` is "other"."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Ordered:
    """A category whose values stand in an order, so that neighbours are alike."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Boolean:
    """A column of yes and no, in the words that labels may have (true/false, 1/0, y/n, …)."""

    name: str


@dataclass(frozen=True)
class Date:
    """A column of ISO dates (or date-times, whose time is not looked at) in [min, max]."""

    name: str
    min: date
    max: date
    knots: int | None = None

    def days(self, text: str) -> float:
        """How many days after `min` an ISO date is.

        >>> Date("born", date(2000, 1, 1), date(2001, 1, 1)).days("2000-02-01T12:00:00")
        31.0
        """
        return float((iso_date(text) - self.min).days)

    @property
    def as_number(self) -> Number:
        """The same column in days after `min`."""
        return Number(self.name, 0.0, float((self.max - self.min).days), self.knots)


@dataclass(frozen=True)
class Ignored:
    """A column the model does not see."""

    name: str


Column = Number | Category | Ordered | Boolean | Date | Ignored


def iso_date(text: str) -> date:
    """The date that a text begins with, as in 2024-02-29 or 2024-02-29T12:00."""
    try:
        return date.fromisoformat(text.strip()[:10])
    except ValueError as error:
        raise InputError(f"a date must be written YYYY-MM-DD; got {text[:40]!r}") from error


def described(column: Column) -> dict[str, object]:
    """A column as a schema file says it."""
    knots: dict[str, object] = {}
    if isinstance(column, (Number, Date)):
        knots = {} if column.knots is None else {"knots": column.knots}
    if isinstance(column, Number):
        return {"kind": "number", "min": column.min, "max": column.max, **knots}
    if isinstance(column, Date):
        return {"kind": "date", "min": column.min.isoformat(), "max": column.max.isoformat(), **knots}
    if isinstance(column, Category):
        return {"kind": "category", "values": list(column.values)}
    if isinstance(column, Ordered):
        return {"kind": "ordered", "values": list(column.values)}
    return {"kind": "boolean" if isinstance(column, Boolean) else "ignore"}
