"""TOML files, read with our own errors and written from plain values."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from dpsrm.core.errors import InputError
from dpsrm.core.files import read_limited, write_atomically

MAX_BYTES = 2**20
"""No config that a person wrote is larger."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file as a dictionary; `InputError` if it cannot be read or is not TOML."""
    try:
        sections: dict[str, Any] = tomllib.loads(read_limited(path, MAX_BYTES).decode("utf-8"))
        return sections
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the file must be TOML; got path={str(path)!r}: {str(error)[:200]}") from error


def parse_value(text: str) -> Any:
    """One value as TOML writes it; bare words are strings.

    >>> parse_value("0.5"), parse_value("[64, 32]"), parse_value("adam")
    (0.5, [64, 32], 'adam')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text


def write_toml(path: Path, value: dict[str, Any]) -> None:
    """Write a dictionary; None values are left out, since TOML has none."""
    write_atomically(path, tomli_w.dumps(_without_none(value)).encode())


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    """The dictionary without None, at every depth."""
    kept = {name: item for name, item in value.items() if item is not None}
    return {name: _without_none(item) if isinstance(item, dict) else item for name, item in kept.items()}
