"""Users' autograd functions, whose parts torch runs outside of all function modes: seen all the same.

torch may override the call of a function, and the way back, and takes the modes off where it asks whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.doors import Doors
from dpsrm.gradients.fresh import Fresh
from dpsrm.gradients.rewrites import Rewriting

RULE = (
    "a torch.autograd.Function or an operator with a vmap rule of its own sees all examples of a batch: give {} "
    'generate_vmap_rule = True, or no rule, instead of that one, or use performance.engine = "loop"'
)
_PARTS = ("forward", "setup_context", "backward", "jvp")
_functions: dict[type[Any], type[Any]] = {}
"""Each function, and the one that runs in its place."""


def package(kind: type[Any]) -> str:
    """Whose a class is.

    >>> package(dict), package(IsolationError)
    ('builtins', 'dpsrm')
    """
    return kind.__module__.partition(".")[0]


def seen(function: type[Any]) -> type[Any]:
    """An autograd function of the user's, every part of which runs with all rewrites and refusals.

    One with a vmap rule is refused; torch's own do what torch does.
    """
    if package(function) in ("torch", "dpsrm") or function in _functions.values():
        return function
    for kind in function.__mro__:
        if "vmap" in vars(kind) and package(kind) not in ("torch", "dpsrm"):
            raise IsolationError(RULE.format(f"{function.__module__}.{function.__qualname__}"))
    if function not in _functions:
        own = {name: getattr(function, name) for name in _PARTS}
        parts = {n: staticmethod(_rewritten(part)) for n, part in own.items() if part is not getattr(Function, n)}
        _functions[function] = type(function.__name__, (function,), parts)
    return _functions[function]


def forget_functions() -> None:
    """Let go of them, after the last pass."""
    _functions.clear()


def _rewritten(part: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a function, with what runs otherwise under vmap (see `rewrites`)."""

    def run(*args: Any) -> Any:
        with Rewriting():
            return part(*args)

    return run


@contextmanager
def fresh_back() -> Iterator[None]:
    """Around a way back outside of vmap, in which users' functions get zeros for memory that nobody wrote."""
    with _FRESH.guarded():
        yield


def _fresh_doors() -> Iterator[tuple[Any, str, Any]]:
    """The method by which torch runs a function's way back."""
    back: Any = BackwardCFunction.apply

    def fresh(node: Any, *gradients: Any) -> Any:
        if package(node._forward_cls) in ("torch", "dpsrm"):
            return back(node, *gradients)
        with Fresh():
            return back(node, *gradients)

    yield BackwardCFunction, "apply", fresh


_FRESH = Doors(_fresh_doors)
