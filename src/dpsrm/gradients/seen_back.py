"""The ways back of users' autograd functions, which torch runs outside of all function modes: seen all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.rewrites import Rewriting

RULE = (
    "a torch.autograd.Function or an operator with a vmap rule of its own sees all examples of a batch: give {} "
    'generate_vmap_rule = True, or no rule, instead of that one, or use performance.engine = "loop"'
)
_functions: dict[type[Any], type[Any]] = {}
"""Each function, and the one that runs in its place."""


def package(kind: type[Any]) -> str:
    """Whose a class is.

    >>> package(dict), package(IsolationError)
    ('builtins', 'dpsrm')
    """
    return kind.__module__.partition(".")[0]


def seen(function: type[Any]) -> type[Any]:
    """An autograd function of the user's whose way back runs with all rewrites and refusals, as its forward does.

    One with a vmap rule is refused; torch's own do what torch does.
    """
    if package(function) in ("torch", "dpsrm") or function in _functions.values():
        return function
    for kind in function.__mro__:
        if "vmap" in vars(kind) and package(kind) not in ("torch", "dpsrm"):
            raise IsolationError(RULE.format(f"{function.__module__}.{function.__qualname__}"))
    if function not in _functions:
        _functions[function] = type(function.__name__, (function,), {"backward": staticmethod(_rewritten(function))})
    return _functions[function]


def forget_functions() -> None:
    """Let go of them, after the last pass."""
    _functions.clear()


def _rewritten(function: type[Any]) -> Callable[..., Any]:
    """The function's way back, with what runs otherwise under vmap (see `rewrites`)."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        with Rewriting():
            return function.backward(ctx, *gradients)

    return backward
