"""Packages that only a part of the library needs, and the one line that tells how to get them."""

from __future__ import annotations

from importlib import import_module

from dpsrm.core.errors import MissingExtra


def need_extra(package: str, *, extra: str) -> None:
    """Raise `MissingExtra` unless `package` can be imported; called just before the import that needs it.

    Args:
        package: the name that is imported, e.g. "pyarrow".
        extra: the group in pyproject.toml that installs it, e.g. "cli".

    >>> need_extra("json", extra="cli")
    >>> need_extra("no_such_package", extra="cli")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.MissingExtra: this needs the package no_such_package; install it: pip install 'dpsrm[cli]'
    """
    try:
        import_module(package)
    except ImportError as error:
        raise MissingExtra(f"this needs the package {package}; install it: pip install 'dpsrm[{extra}]'") from error
