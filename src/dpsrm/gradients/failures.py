"""A function of torch that fails, fails for all examples: code that catches the error goes on otherwise for all.

A matrix of one example that has no Cholesky factor, a place of one example outside of its table: torch raises under
vmap, and what the module does then (another formula, a larger jitter), it does for every example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.crossing import need_seen

_CAUGHT = (
    "a function of torch failed, and module or loss went on: one example that makes it fail would decide what is "
    "computed of all others; take a function that says for each example whether it failed (torch.linalg.cholesky_ex, "
    'inv_ex, solve_ex) and torch.where, or performance.engine = "loop"; it said: {}'
)


class Watching(TorchFunctionMode):
    """Refuses what hides what it calls; cannot be left in peace after a function failed, whoever caught the error."""

    failed: Exception | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, and remember its failure."""
        try:
            need_seen(func, types)
            return self.call(func, args, kwargs or {})
        except Exception as error:
            self.failed = error
            raise

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run `func`, or what runs in its place."""
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        """Refuse what went on."""
        super().__exit__(kind, *error)  # type: ignore[no-untyped-call]
        if self.failed is not None and kind is None:
            raise IsolationError(_CAUGHT.format(" ".join(str(self.failed).split())[:200])) from self.failed
