"""What Python can run below vmap, where torch hands over the tensors of all examples at once: noticed, and refused.

vmap gives module and loss one example. But torch runs some code of the user's on the tensors behind: hooks on what
autograd saves, modes and tensors with `__torch_dispatch__`, and batching rules. None of it can be told from mixing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.module_state import is_sharded

SAVED = (
    "saved tensor hooks see all examples of a batch at once, so that one record could move the gradients of others; "
    "switch activation checkpointing off, and offloading or packing of activations (batches are run in pieces, so that "
    'memory stays small), or use performance.engine = "loop"'
)
_MODE = (
    "a TorchDispatchMode sees all examples of a batch at once, so that one record could move what others give; "
    'leave {} out, write it as a TorchFunctionMode (which sees one example), or use performance.engine = "loop"'
)
_SUBCLASS = (
    "{} is a tensor with a __torch_dispatch__ of its own, which sees all examples of a batch at once: "
    'make an ordinary tensor of it, or use performance.engine = "loop"'
)
_lock = threading.Lock()
_inside = 0
_originals: dict[type[Any], Callable[..., Any]] = {}


@contextmanager
def nothing_below() -> Iterator[None]:
    """Inside, nobody can put code below vmap: entering such a context is an `IsolationError`.

    Modes of torch's own (counting, tracing) may run, and the saved tensor hooks of this package.

    Edge cases: what was entered before is refused, too. torch has no list of what was entered and left again, so its
    two classes tell for the time being; this holds for all threads, because backward passes have threads of their own.
    """
    try:
        with disable_saved_tensors_hooks(SAVED):
            pass
    except RuntimeError as error:
        raise IsolationError(SAVED) from error
    for mode in _get_current_dispatch_mode_stack():
        _need_ours(TorchDispatchMode, mode)
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    """The first pass that begins puts the guards in place."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            for kind in (TorchDispatchMode, saved_tensors_hooks):
                _originals[kind] = kind.__enter__
                kind.__enter__ = _guarded(kind, kind.__enter__)  # type: ignore[method-assign]


def _end() -> None:
    """The last pass that ends takes them away."""
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            for kind, original in _originals.items():
                kind.__enter__ = original


def _guarded(kind: type[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """`kind.__enter__`, for those that may."""

    def enter(context: Any) -> Any:
        _need_ours(kind, context)
        return original(context)

    return enter


def _need_ours(kind: type[Any], context: Any) -> None:
    """Refuse a context that may do anything with the tensors of all examples."""
    package = type(context).__module__.partition(".")[0]
    if kind is saved_tensors_hooks and package != "dpsrm":
        raise IsolationError(SAVED)
    if kind is TorchDispatchMode and package not in ("torch", "dpsrm"):
        raise IsolationError(_MODE.format(type(context).__name__))


def refuse_subclasses(*modules: Any) -> None:
    """Refuse parameters, buffers and attributes that are tensors with a `__torch_dispatch__` of their own."""
    for path, owner in chain.from_iterable(m.named_modules() for m in modules if isinstance(m, nn.Module)):
        held = chain(owner._parameters.items(), owner._buffers.items(), vars(owner).items())
        for name, value in held:
            own = isinstance(value, Tensor) and type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__
            if own and not is_sharded(value):
                raise IsolationError(_SUBCLASS.format(f"{path}.{name}" if path else name))


_TORCHS = ("aten", "prims", "flex_lib")
"""Operators whose batching rules are torch's own."""


def foreign_rules() -> list[str]:
    """Batching rules, outside of torch and this package: of autograd functions, and of operators."""
    functions = _foreign_functions(torch.autograd.Function)
    operators: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("FuncTorchBatched")
    return sorted({*functions, *(name for name in operators if name.partition("::")[0] not in _TORCHS)})


def _foreign_functions(root: type[Any]) -> list[str]:
    """The classes under `root`, outside of torch and this package, that bring a vmap rule of their own."""
    found: list[str] = []
    kinds: list[type[Any]] = root.__subclasses__()
    for kind in kinds:
        ours = kind.__module__.partition(".")[0] in ("torch", "dpsrm")
        if "vmap" in vars(kind) and not ours:
            found.append(f"{kind.__module__}.{kind.__qualname__}")
        found += _foreign_functions(kind)
    return found
