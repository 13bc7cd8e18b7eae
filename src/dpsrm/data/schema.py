"""A schema file: ranges and categories that are public by the user's word."""

from __future__ import annotations

import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from dpsrm.core.errors import InputError, need
from dpsrm.data.columns import Boolean, Category, Column, Date, Ignored, Number, Ordered, iso_date
from dpsrm.data.tables import cell_text, need_classes


@dataclass(frozen=True)
class Schema:
    """Columns in the order of the file that declares them; the target and its classes are optional.

    >>> schema_from({"columns": {"age": {"kind": "number", "min": 17, "max": 90}}}).columns
    (Number(name='age', min=17.0, max=90.0, knots=None),)
    """

    columns: tuple[Column, ...]
    target: str | None = None
    classes: tuple[str, ...] | None = None
    target_range: tuple[float, float] | None = None


def read_schema(path: Path | str) -> Schema:
    """Read a TOML schema: `[columns.NAME]` with a kind, and `[target]` with column and classes, or min and max.

    Edge cases: a file that cannot be read, is not TOML, or says what no schema says raises `InputError`.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the schema must be a readable file; got {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the schema must be TOML; got {str(path)!r}: {error}") from error
    return schema_from(document)


def schema_from(document: Mapping[str, Any]) -> Schema:
    """Make a schema of what a TOML file says, refusing keys it does not know."""
    _need_keys(document, "the schema", {"columns", "target"})
    columns = document.get("columns")
    need(
        isinstance(columns, dict) and bool(columns),
        "the schema must have at least one [columns.NAME] table",
        columns=columns,
    )
    assert isinstance(columns, dict)
    parsed = tuple(_column(name, entry) for name, entry in columns.items())
    need(
        any(not isinstance(column, Ignored) for column in parsed),
        "the schema must keep at least one column",
        columns=tuple(columns),
    )
    target = document.get("target", {})
    need(isinstance(target, dict), "[target] must be a table", target=target)
    _need_keys(target, "[target]", {"column", "classes", "min", "max"})
    name, classes = target.get("column"), target.get("classes")
    need(name is None or isinstance(name, str), "[target] column must be a name", column=name)
    need(name not in columns, "the target must not be a feature as well", column=name)
    names = None if classes is None else need_classes(_texts(classes, "[target] classes"))
    return Schema(parsed, name, names, _target_range(target))


def _target_range(target: Mapping[str, Any]) -> tuple[float, float] | None:
    """The range of a target that is a number; None for one with classes."""
    if not {"min", "max"} & set(target):
        return None
    need("classes" not in target, "[target] has classes, or min and max, not both", target=dict(target))
    low, high = (_finite(target.get(key), f"[target] {key}") for key in ("min", "max"))
    need(low < high, "[target] min must be below max", min=low, max=high)
    return low, high


def _column(name: str, entry: object) -> Column:
    """One [columns.NAME] table."""
    where = f"[columns.{name}]"
    need(isinstance(entry, dict), f"{where} must be a table", value=entry)
    assert isinstance(entry, dict)
    kind = entry.get("kind")
    if kind in ("number", "date"):
        _need_keys(entry, where, {"kind", "min", "max", "knots"})
        return _range(name, entry, where)
    if kind in ("category", "ordered"):
        _need_keys(entry, where, {"kind", "values"})
        values = tuple(_category(value) for value in _texts(entry.get("values"), f"{where} values"))
        need(len(set(values)) == len(values), f"{where} values must differ", values=values)
        return Category(name, values) if kind == "category" else Ordered(name, values)
    if kind in ("boolean", "ignore"):
        _need_keys(entry, where, {"kind"})
        return Boolean(name) if kind == "boolean" else Ignored(name)
    raise InputError(f"{where} kind must be number, category, ordered, boolean, date or ignore; got kind={kind!r}")


def _range(name: str, entry: Mapping[str, Any], where: str) -> Number | Date:
    """A column of numbers or dates."""
    knots = _knots(entry.get("knots"), where)
    (least, at_min), (most, at_max) = ((entry.get(key), f"{where} {key}") for key in ("min", "max"))
    column: Number | Date
    if entry["kind"] == "number":
        column = Number(name, _finite(least, at_min), _finite(most, at_max), knots)
    else:
        column = Date(name, _day(least, at_min), _day(most, at_max), knots)
    low, high = (column.min, column.max) if isinstance(column, Number) else (0.0, column.as_number.max)
    need(low < high, f"{where} min must be below max", min=column.min, max=column.max)
    return column


def _knots(value: object, where: str) -> int | None:
    """How many places a number may bend at."""
    good = value is None or (type(value) is int and 2 <= value <= 256)
    need(good, f"{where} knots must be a whole number from 2 to 256", knots=value)
    return value if isinstance(value, int) else None


def _day(value: object, where: str) -> date:
    """A date of TOML, or ISO text."""
    if isinstance(value, date):
        return value.date() if isinstance(value, datetime) else value
    need(isinstance(value, str), f"{where} must be a date", value=value, remedy="write it as 2024-02-29")
    return iso_date(str(value))


def _category(text: str) -> str:
    """A listed value in the spelling cells are compared in; a listed "NA" is a category, not missing."""
    spelled = cell_text(text)
    return text.strip() if spelled is None else spelled


def _texts(values: object, where: str) -> list[str]:
    """A non-empty list of texts or numbers, as texts."""
    need(
        isinstance(values, list) and bool(values) and all(type(v) in (str, int, float) for v in values),
        f"{where} must be a list of texts or numbers",
        values=values,
    )
    assert isinstance(values, list)
    return [str(value) for value in values]


def _finite(value: object, where: str) -> float:
    """A number that is neither a boolean nor infinite."""
    need(type(value) in (int, float), f"{where} must be a number", value=value)
    assert isinstance(value, (int, float))
    need(
        abs(value) < sys.float_info.max and math.isfinite(value),
        f"{where} must be finite",
        value=str(value)[:40],
    )
    return float(value)


def _need_keys(table: Mapping[str, Any], where: str, known: set[str]) -> None:
    """Refuse keys nobody reads: a misspelt one would be silently without effect."""
    unknown = sorted(set(table) - known)
    need(not unknown, f"{where} must hold only {', '.join(sorted(known))}", unknown=unknown)
