"""Methods of torch that run otherwise for the time being: in all threads, because backward passes have their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Door = tuple[Any, str, Any]
"""A class (or a file of torch's), a name in it, and what stands there for the time being."""


class Doors:
    """Some of torch's methods, guarded while any pass is made.

    Args:
        doors: finds what is guarded, when the first pass begins.
        after: called when the last pass has ended.
    """

    def __init__(self, doors: Callable[[], Iterable[Door]], after: Callable[[], None] = lambda: None) -> None:
        """No pass is made yet."""
        self._doors, self._after = doors, after
        self._lock = threading.Lock()
        self._inside = 0
        self._originals: dict[tuple[Any, str], Any] = {}

    def __contains__(self, door: tuple[Any, str]) -> bool:
        """Whether a method is guarded now."""
        return door in self._originals

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Around a pass: the first that begins puts the guards in place, the last that ends takes them away."""
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                for kind, name, guard in self._doors():
                    self._originals[kind, name] = vars(kind)[name]
                    setattr(kind, name, guard)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    for (kind, name), original in self._originals.items():
                        setattr(kind, name, original)
                    self._originals.clear()
                    self._after()
