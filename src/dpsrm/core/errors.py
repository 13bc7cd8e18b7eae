"""The project's own errors, the one way to check an argument, to ask for an extra package, and to quote others."""

from __future__ import annotations

import unicodedata
from importlib import import_module
from numbers import Real


class DpsrmError(Exception):
    """Every error dpsrm raises on purpose; the command line prints it without a traceback."""


class InputError(DpsrmError, ValueError):
    """A value the user gave cannot be used; the message names it and the remedy."""


class BudgetExceeded(DpsrmError):
    """The next release would cost more than the budget allows; nothing was released."""


class BoundExceeded(DpsrmError):
    """Theory mode: one example's gradient exceeds the bound the user declared for all of them."""


class LedgerError(DpsrmError):
    """A ledger is malformed, tampered with, or does not say what the plan predicted."""


class IsolationError(DpsrmError):
    """Module or loss cannot be run on each example alone, or were seen to treat examples together."""


class Diverged(DpsrmError):
    """Training left the finite numbers; nothing more is released."""


class ResumeError(DpsrmError):
    """A run cannot be resumed: it is finished, its keys are gone, or something is not what it was."""


class RankFailed(DpsrmError):
    """Another process of this training stopped, or disagrees with this one; nothing more is released."""


class MissingExtra(DpsrmError, ImportError):
    """A package is not installed that only some abilities need; the message has the command that installs it."""


def need(condition: bool, rule: str, /, *, remedy: str = "", **got: object) -> None:
    """Raise `InputError` unless `condition`: what must hold; got name=value (a value called got: alone); the remedy.

    >>> need(0 < 1, "epsilon must be positive", epsilon=1)
    >>> need(0 < -1, "epsilon must be positive", epsilon=-1, remedy="try --epsilon 1")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: epsilon must be positive; got epsilon=-1; try --epsilon 1
    """
    if condition:
        return
    message = rule
    if got:
        message += "; got " + ", ".join(
            f"{value!r}" if name == "got" else f"{name}={value!r}" for name, value in got.items()
        )
    if remedy:
        message += f"; {remedy}"
    raise InputError(message)


def need_numbers(**values: object) -> None:
    """Raise `InputError` unless every value is a number.

    >>> need_numbers(epsilon=3, delta=1e-5)
    >>> need_numbers(epsilon="3")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: epsilon must be a number; got epsilon='3'
    """
    for name, value in values.items():
        good = isinstance(value, Real) and not isinstance(value, bool)
        need(good, f"{name} must be a number; got {name}={value!r}")


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


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that show nothing themselves, but change what is shown."""


def visible(text: object) -> str:
    """Text in which everything can be seen: control characters, line ends and writing directions as their escapes.

    Names in a run folder may come from anywhere, and such characters could overwrite what we say, or add to it.
    """
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _UNSEEN else character
        for character in str(text)
    )
