"""What an estimator reads from private records although nobody declared it, said aloud."""

from __future__ import annotations

import warnings


class PrivacyLeakWarning(UserWarning):
    """Something that the guarantee does not cover was read from the records, or made predictable."""


READ = "read from the records: not covered by the guarantee"
"""How config.toml calls what was not declared."""


def tell_leak(what: str, remedy: str) -> None:
    """Warn the caller of an estimator's method."""
    warnings.warn(f"{what}; the guarantee does not cover that; {remedy}", PrivacyLeakWarning, stacklevel=4)
