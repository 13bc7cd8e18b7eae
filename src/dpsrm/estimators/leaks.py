"""What an estimator reads from private records although nobody declared it, said aloud."""

from __future__ import annotations

import sys
import warnings


class PrivacyLeakWarning(UserWarning):
    """Something that the guarantee does not cover was read from the records, or made predictable."""


def tell_leak(what: str, remedy: str) -> None:
    """Warn the caller of an estimator's method."""
    _warn(f"{what}; the guarantee does not cover that; {remedy}")


def tell_price() -> None:
    """Warn the caller of `fit` that it is not the only one."""
    tell_leak(
        "this is not the only fit: each is charged by itself, and all together cost more than epsilon_spent_ says",
        "share a budget file, budget=new_budget(…), or search with PrivateSearchCV (docs/sklearn.md)",
    )


def tell_delta(delta: float, n: int) -> None:
    """Warn the caller of `fit` of a δ that promises nothing."""
    if delta >= 1 / n:
        words = f"delta = {delta:g} is not below 1/n = {1 / n:.3g}: publishing one record as it is keeps such a promise"
        _warn(f"{words}, too; choose a delta well below 1/n")


def _warn(message: str) -> None:
    """Warn of the line that called the package, however deep inside it we are."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("dpsrm."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PrivacyLeakWarning, stacklevel=level)
