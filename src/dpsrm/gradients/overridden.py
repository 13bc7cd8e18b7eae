"""Functions of others that ask torch whether somebody overrides them, and so hide from a mode what they call inside."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, cast

from dpsrm.core.errors import IsolationError

_COMPILED = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)
_HIDES = (
    "{} asks torch whether somebody overrides it (handle_torch_function), and what it calls inside is then seen by "
    "nobody: write it without, or decorate it with torch.overrides.wrap_torch_function"
)


def body_of(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What is inside of a function of others that `wrap_torch_function` has wrapped; None for torch's own functions.

    Called in its place, while a mode is on, it shows that mode all it calls. A function that hides it is refused.
    """
    if type(function) in _COMPILED or is_torchs(function):
        return None
    body = getattr(function, "__wrapped__", None)
    if not callable(body):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise IsolationError(_HIDES.format(f"{function.__module__}.{name}"))
    return cast(Callable[..., Any], body)


def is_torchs(function: Callable[..., Any]) -> bool:
    """Whether a function is torch's own, by the package that it says it is of.

    >>> import torch
    >>> is_torchs(torch.nn.functional.linear), is_torchs(torch.sin), is_torchs(body_of)
    (True, True, False)
    """
    return (getattr(function, "__module__", None) or "torch").partition(".")[0] == "torch"
