"""A function of torch that fails, fails for all examples: code that catches the error goes on otherwise for all.

A matrix of one example that has no Cholesky factor, a place of one example outside of its table: torch raises under
vmap, and what the module does then (another formula, a larger jitter), it does for every example.
"""

from __future__ import annotations

from types import TracebackType

from torch.overrides import TorchFunctionMode

from dpsrm.core.errors import IsolationError

_CAUGHT = (
    "a function of torch failed, and module or loss went on: one example that makes it fail would decide what is "
    "computed of all others; take a function that says for each example whether it failed (torch.linalg.cholesky_ex, "
    'inv_ex, solve_ex) and torch.where, or performance.engine = "loop"; it said: {}'
)


class Unforgiving(TorchFunctionMode):
    """A mode that cannot be left in peace after a function failed, whoever caught the error."""

    failed: Exception | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse what went on."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self.failed is not None and kind is None:
            raise IsolationError(_CAUGHT.format(" ".join(str(self.failed).split())[:200])) from self.failed
