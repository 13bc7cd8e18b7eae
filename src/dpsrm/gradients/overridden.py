"""Functions of others that ask torch whether somebody overrides them: a mode sees them, and not what they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import wrap_torch_function

_WRAPPER = wrap_torch_function(lambda: ())(lambda: None).__code__


def wrapped(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What `wrap_torch_function` wrapped, if it made the function: that can be called itself, with a mode on."""
    found: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    return found if getattr(function, "__code__", None) is _WRAPPER else None


def is_torchs(thing: Any) -> bool:
    """Whether a function or class is torch's; what C++ defines has no file.

    >>> import torch
    >>> is_torchs(torch.nn.functional.linear), is_torchs(torch.sin), is_torchs(wrapped)
    (True, True, False)
    """
    return (getattr(thing, "__module__", None) or "torch").partition(".")[0] == "torch"
