"""Whether a fit is the only one (if not, it must be said: each is charged by itself), and what a failed one leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from dpsrm.core.errors import need_extra

need_extra("sklearn", extra="sklearn")
from sklearn.base import BaseEstimator  # noqa: E402


class CountsFits(BaseEstimator):  # type: ignore[misc]
    """Knows whether a fit is the only one: searches and cross-validations clone, and fit one clone after the other."""

    _clones = 0
    _clones_before = 0

    def __sklearn_clone__(self) -> Self:
        """A clone knows how many were made before it."""
        made = self._uncounted_clone()
        made._clones_before, self._clones = self._clones, self._clones + 1
        return made

    def _uncounted_clone(self) -> Self:
        """A clone that leaves no trace."""
        made: Self = super().__sklearn_clone__()
        return made

    def _fitted_before(self) -> bool:
        """Whether this object, or a clone of the same one, was fitted before (or may have been)."""
        return hasattr(self, "epsilon_spent_") or self._clones_before > 0


@contextmanager
def unless_it_fails(estimator: Any) -> Iterator[None]:
    """What is learned about an estimator's records inside; one whose fit fails is what it was, its classes included."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
