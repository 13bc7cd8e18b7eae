"""What Python can run below vmap, where torch hands over the tensors of all examples at once: noticed, and refused.

vmap gives module and loss one example. But torch runs some code of the user's on the tensors behind: hooks on what
autograd saves, modes and tensors with `__torch_dispatch__`, and batching rules. None of it can be told from mixing.
Each has a door in torch that it must go through; the doors are guarded while a pass is made, whenever it was defined.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import autograd_function
from torch._functorch.autograd_function import custom_function_call
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from dpsrm.core.errors import IsolationError
from dpsrm.gradients.doors import Door, Doors
from dpsrm.gradients.module_state import is_sharded
from dpsrm.gradients.seen_functions import RULE, forget_functions, package, seen

_LOOP = 'or use performance.engine = "loop"'
SAVED = (
    "saved tensor hooks see all examples of a batch at once, so that one record could move the gradients of others; "
    "switch activation checkpointing off, and offloading or packing of activations (batches are run in pieces, so that "
    f"memory stays small), {_LOOP}"
)
_MODE = (
    "a TorchDispatchMode sees all examples of a batch at once, so that one record could move what others give; "
    f"leave {{}} out, write it as a TorchFunctionMode (which sees one example), {_LOOP}"
)
_OUTER = (
    "what a TorchFunctionMode calls that was entered before a pass is seen by nobody, and may mix examples: enter {} "
    f"in forward, {_LOOP}"
)
_SUBCLASS = (
    "{} is a tensor with a __torch_dispatch__ of its own, which sees all examples of a batch at once: "
    f"make an ordinary tensor of it, {_LOOP}"
)
_NEW = "{} is a tensor with a __torch_dispatch__ of its own, defined during a pass: import it before"
_SCRIPT = (
    "scripted code (torch.jit) calls operators that nobody here sees, some of which mix examples: give the Python "
    f"function itself, {_LOOP}"
)
_UNSEEN = (
    "inside of torch._C.DisableTorchFunction nobody sees what is called, which may mix examples: take "
    f"DisableTorchFunctionSubclass, {_LOOP}"
)
_Method = Callable[..., Any]


@contextmanager
def nothing_below() -> Iterator[None]:
    """Around a pass, inside of which none of the user's code is run below vmap: that is an `IsolationError`.

    Modes of torch's own (counting, tracing) may run, and the saved tensor hooks of this package.

    Edge cases: hooks and modes that were entered before are refused, too. A class that the pass itself defines cannot
    be guarded, so it is refused at the end; until then it must not be collected.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with guarded():
            yield
            _need_no_new_kinds()
    finally:
        if collecting:
            gc.enable()


@contextmanager
def guarded() -> Iterator[None]:
    """The guards alone, around several passes, which then cost less.

    torch has no list of what was entered and left again, so its classes tell for the time being. Functions that were
    given to `torch.compile` run as they are: compiled, they would run this package's guards compiled, too.
    """
    try:
        with disable_saved_tensors_hooks(SAVED):
            pass
    except RuntimeError as error:
        raise IsolationError(SAVED) from error
    for mode in _get_current_dispatch_mode_stack():
        _need_our_mode(mode)
    for outer in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        if package(type(outer)) not in ("torch", "dpsrm"):
            raise IsolationError(_OUTER.format(type(outer).__name__))
    compiled = "torch._dynamo.eval_frame" in sys.modules  # importing it takes seconds
    with _DOORS.guarded(), torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        yield


def _doors() -> Iterator[Door]:
    """What runs below vmap must pass these methods: class (or torch's file), name, and the guarded method."""
    guarded: list[tuple[type[Any], str, _Method]] = [
        (saved_tensors_hooks, "__enter__", _need_our_hooks),
        (TorchDispatchMode, "__enter__", _need_our_mode),
        (OpOverload, "__call__", _need_no_rule_of_operator),
        (OpOverloadPacket, "__call__", _need_no_rule_of_operator),
        (torch._C.ScriptFunction, "__call__", _refuse_script),
        (torch._C.ScriptMethod, "__call__", _refuse_script),
    ]
    for kind, name, need in guarded:
        yield kind, name, _after(need, vars(kind)[name])
    call = vars(type(custom_function_call))["__call__"]
    yield type(custom_function_call), "__call__", lambda self, kind, *args, **kw: call(self, seen(kind), *args, **kw)
    yield torch._C, "DisableTorchFunction", _refuse_unseen
    reduced = autograd_function.reductify_leaf
    yield autograd_function, "reductify_leaf", lambda *args, **kwargs: _own_memory(reduced(*args, **kwargs))
    for kind in _tensor_kinds(Tensor):
        yield kind, "__torch_dispatch__", classmethod(_refuse_tensor)


_DOORS = Doors(_doors, forget_functions)


def _after(need: _Method, original: _Method) -> _Method:
    """The method, for those that may."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        need(*args)
        return original(*args, **kwargs)

    return guarded


def _need_our_hooks(context: Any) -> None:
    """Saved tensor hooks may do anything with the tensors of all examples."""
    if package(type(context)) != "dpsrm":
        raise IsolationError(SAVED)


def _need_our_mode(context: Any) -> None:
    """So may a dispatch mode."""
    if package(type(context)) not in ("torch", "dpsrm"):
        raise IsolationError(_MODE.format(type(context).__name__))


def _need_no_rule_of_operator(operator: OpOverload[..., Any] | OpOverloadPacket[..., Any], *_: Any) -> None:
    """So may that of an operator."""
    name: str = operator.name() if isinstance(operator, OpOverload) else operator._qualified_op_name  # type: ignore[no-untyped-call]
    if name.partition("::")[0] in _TORCHS:
        return
    if name.partition(".")[0] in {rule.partition(".")[0] for rule in _rules(_TORCHS)}:  # whichever overload
        raise IsolationError(RULE.format(name))


def _refuse_script(*_: Any) -> None:
    """So does scripted code."""
    raise IsolationError(_SCRIPT)


def _refuse_unseen(*_: Any) -> None:
    """So does what is hidden from all function modes."""
    raise IsolationError(_UNSEEN)


def _own_memory(gradient: Tensor | None) -> Tensor | None:
    """A gradient that torch has spread over the examples, with memory for each: a function may write into it."""
    return gradient if gradient is None or 0 not in gradient.stride() else gradient.contiguous()


def _refuse_tensor(kind: type[Tensor], *_: Any, **__: Any) -> Any:
    """So may a tensor that says itself what is done with it."""
    raise IsolationError(_SUBCLASS.format(f"{kind.__module__}.{kind.__qualname__}"))


def _tensor_kinds(root: type[Tensor]) -> Iterator[type[Tensor]]:
    """Kinds of tensors with a `__torch_dispatch__` of their own, but for shards and what torch traces with."""
    for kind in root.__subclasses__():
        if "__torch_dispatch__" in vars(kind) and not kind.__module__.startswith(("torch._", "torch.distributed.")):
            yield kind
        yield from _tensor_kinds(kind)


def _need_no_new_kinds() -> None:
    """Refuse kinds of tensors that were defined during a pass: nobody guarded them."""
    for kind in _tensor_kinds(Tensor):
        if (kind, "__torch_dispatch__") not in _DOORS and package(kind) != "torch":
            raise IsolationError(_NEW.format(f"{kind.__module__}.{kind.__qualname__}"))


def refuse_subclasses(*modules: Any) -> None:
    """Refuse parameters, buffers and attributes that are such tensors: copies of a module may lose what they do."""
    for path, owner in chain.from_iterable(m.named_modules() for m in modules if isinstance(m, nn.Module)):
        held = chain(owner._parameters.items(), owner._buffers.items(), vars(owner).items())
        for name, value in held:
            own = isinstance(value, Tensor) and type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__
            if own and not is_sharded(value):
                raise IsolationError(_SUBCLASS.format(f"{path}.{name}" if path else name))


_TORCHS = ("aten", "prims", "flex_lib")
"""Operators whose batching rules are torch's own."""


def foreign_rules() -> list[str]:
    """Operators with a batching rule, outside of torch: what C++ calls passes no door that Python could guard.

    Those of torch's `F.linear_cross_entropy`, which Python calls, are refused where they are used: their rule gives
    other gradients than an example alone has.
    """
    return _rules((*_TORCHS, "torch_nn"))


def _rules(but: tuple[str, ...]) -> list[str]:
    """Operators with a batching rule, but those of some namespaces."""
    found: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("FuncTorchBatched")
    return sorted(name for name in found if name.partition("::")[0] not in but)
