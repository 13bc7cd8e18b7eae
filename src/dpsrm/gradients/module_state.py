"""A module as a flat vector of its trainable parameters, and copies of it as it was: one for every pass over records.

Records never touch the user's module, and nothing a pass leaves behind in attributes, lists or plain tensors is seen by
the next one. Parameters and buffers are not copied here: they are passed by value (`passes.py`).

Shapes: P trainable parameters in all.
"""

from __future__ import annotations

import copy
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dpsrm.core.errors import IsolationError, need

_MARK = "_is_fsdp_managed_module"
_STATE = "__composable_api_state_key"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_STATE_HOOKS = ("_state_dict_", "_load_state_dict_")


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they lie in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of `module`'s parameters with requires_grad; the others are frozen and stay as they are."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        need(len(named) > 0, "the module must have a trainable parameter", module=type(module).__name__)
        lazy = [name for name, p in named if is_lazy(p)]
        need(not lazy, "parameters must have their shapes", parameters=lazy, remedy="run the module on public numbers")
        parts = [name for name, p in named if p.is_complex()]
        need(not parts, "trainable parameters must be real", parameters=parts, remedy="use torch.view_as_complex")
        return cls(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter holds."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return sum(self.sizes)

    def split(self, vector_P: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector in the parameters' shapes."""
        pieces = torch.split(vector_P, self.sizes)
        return {n: piece.view(s) for n, piece, s in zip(self.names, pieces, self.shapes, strict=True)}

    def read(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one flat vector."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    @torch.no_grad()
    def write(self, module: nn.Module, vector_P: Tensor) -> None:
        """Copy the flat vector into the module's parameters; of sharded ones, this rank's part."""
        parameters = parameters_of(module)
        for name, piece in self.split(vector_P).items():
            mine = parameters[name]
            local(mine).copy_(part_of(piece, mine) if is_sharded(mine) else piece)

    def held_by(self, module: nn.Module, vector_P: Tensor) -> bool:
        """Whether the module's parameters are those of the flat vector; of sharded ones, this rank's part."""
        parameters = parameters_of(module)
        pairs = ((parameters[name], piece) for name, piece in self.split(vector_P).items())
        return all(torch.equal(local(p), part_of(piece, p) if is_sharded(p) else piece) for p, piece in pairs)


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, FunctionType, BuiltinFunctionType, torch.dtype)
"""Values that nobody can change: twins share them."""
_CONTAINERS = (dict, list, set, OrderedDict)
_REGISTERED = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True)
class _Sketch:
    """One module, taken apart: what twins share, what is empty, what is registered, and what must be copied.

    `flat` are containers of values that nobody can change, which are quickly copied.
    """

    kind: type[nn.Module]
    shared: dict[str, Any]
    empty: dict[str, type]
    flat: dict[str, Any]
    registered: dict[str, dict[str, Any]]
    copied: dict[str, Any]

    @classmethod
    def of(cls, module: nn.Module) -> _Sketch:
        """Sort the module's attributes."""
        shared, empty, flat, registered, copied = {}, {}, {}, {}, {}
        kind, attributes = bare(module)
        for name, value in attributes.items():
            if _unchanging(value):
                shared[name] = value
            elif name in _REGISTERED:
                registered[name] = dict(value)
            elif type(value) in _CONTAINERS and not value:
                empty[name] = type(value)
            elif type(value) in _CONTAINERS and _unchanging(tuple(value.items() if isinstance(value, dict) else value)):
                flat[name] = value
            else:
                copied[name] = value
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            shared["sparse"] = False  # where a gradient is taken of one vector of all parameters, it is dense
        if "_compiled_call_impl" in attributes:
            shared["_compiled_call_impl"] = None  # `module.compile()`: that function would run the original
        if isinstance(module, nn.RNNBase) and copied.pop("_flat_weights", None) is not None:
            empty["_flat_weights"] = list  # filled from the weights by their names before it runs
        return cls(kind, shared, empty, flat, registered, copied)


def _unchanging(value: Any) -> bool:
    """Whether nobody can change the value."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_unchanging, value)))


class Twins:
    """Makes twins of a module, or of a loss, that are equal to it as it was when this object was made.

    Args:
        original: the module or function.
        with_values: whether twins get copies of the parameters and buffers too.
        kept: what is never copied, by its id.

    Edge cases: a function is its own twin: what it keeps elsewhere (globals, closures) cannot be seen from here. A
    module that Python cannot copy is refused.
    """

    def __init__(
        self, original: Callable[..., Any], *, with_values: bool = False, kept: Mapping[int, Any] | None = None
    ) -> None:
        """Copy everything that could change, once."""
        compiled = isinstance(original, torch.jit.ScriptModule)
        need(not compiled, "a scripted module cannot be copied", remedy="give the module it was made from")
        self._maker: _Maker | None = None
        self._kept = dict(kept or {})
        if isinstance(original, nn.Module) and id(original) not in self._kept:
            _refuse_compiled(original)
            first = _Maker(original, self._kept, with_values=with_values)
            if not with_values:
                first.refuse_aliases()
            self._maker = _Maker(emptied(first.make()), self._kept, with_values=with_values)
        self._callable = _deep(original, dict(self._kept)) if self._maker is None else original

    def make(self) -> Callable[..., Any]:
        """A new twin."""
        if self._maker is not None:
            return self._maker.make()
        return self._callable if type(self._callable) in _PLAIN else _deep(self._callable, dict(self._kept))


class _Maker:
    """The sketches of a module and all its submodules."""

    def __init__(self, root: nn.Module, kept: Mapping[int, Any], *, with_values: bool) -> None:
        """Take every module apart."""
        self.root = root
        self.kept = kept
        self.with_values = with_values
        self.sketches = {id(module): _Sketch.of(module) for module in root.modules() if id(module) not in kept}
        self.tensors = {id(t): t for t in (*root.parameters(), *root.buffers()) if id(t) not in kept}

    def make(self) -> nn.Module:
        """Put new modules together."""
        twins: dict[int, Any] = {at: sketch.kind.__new__(sketch.kind) for at, sketch in self.sketches.items()}
        made: nn.Module = twins[id(self.root)]
        if self.with_values:
            twins.update({at: _value(tensor) for at, tensor in self.tensors.items()})
        twins.update({id(flat): flat.copy() for sketch in self.sketches.values() for flat in sketch.flat.values()})
        memo: dict[int, Any] | None = None
        for at, sketch in self.sketches.items():
            inside: dict[str, Any] = twins[at].__dict__
            inside.update(sketch.shared)
            for name, kind in sketch.empty.items():
                inside[name] = kind()
            for name, value in sketch.flat.items():
                inside[name] = twins[id(value)]  # one under two names stays one
            for name, members in sketch.registered.items():
                inside[name] = {n: twins.get(id(member), member) for n, member in members.items()}
            for name, value in sketch.copied.items():
                memo = {**self.kept, **self.tensors, **twins} if memo is None else memo
                inside[name] = _copied(value, memo)
        return made

    def refuse_aliases(self) -> None:
        """Refuse a parameter or buffer that an attribute holds too: a pass puts its values under the names only."""
        modules = {id(module): module for module in self.root.modules()}
        for sketch in self.sketches.values():
            for name, value in sketch.copied.items():
                memo = _Memo({**modules, **self.tensors})
                memo.tensors = self.tensors.keys()
                _copied(value, memo)
                need(
                    not memo.met,
                    "a parameter or buffer must be reached by its registered name only",
                    attribute=f"{sketch.kind.__name__}.{name}",
                    remedy="keep names there and use getattr(self, name), or use nn.ParameterList",
                )


class _Memo(dict[int, Any]):
    """A memo of `deepcopy` that remembers whether it was asked for a registered tensor."""

    tensors: Collection[int] = ()
    met = False

    def get(self, key: int, default: Any = None) -> Any:
        """What a thing became."""
        self.met = self.met or key in self.tensors
        return super().get(key, default)


def trained_parts(module: nn.Module) -> dict[int, Any]:
    """The trainable parameters by their ids, and all modules that have one."""
    modules = [each for each in module.modules() if any(p.requires_grad for p in each.parameters())]
    return {id(part): part for part in (*modules, *(p for p in module.parameters() if p.requires_grad))}


def _refuse_compiled(module: nn.Module) -> None:
    """Refuse what `torch.compile` returns: it runs the module it was made from, never a twin."""
    found = sys.modules.get("torch._dynamo.eval_frame")
    compiled = [] if found is None else [n for n, m in module.named_modules() if isinstance(m, found.OptimizedModule)]
    need(
        not compiled,
        "a compiled module cannot be copied: it would run the module it was made from",
        modules=[name or "the module itself" for name in compiled],
        remedy="give the module before torch.compile",
    )


def _value(tensor: Tensor) -> Tensor:
    """A copy of a registered tensor; a parameter stays one."""
    copied = tensor.detach().clone()
    return nn.Parameter(copied, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy in which modules are their twins and registered tensors are themselves."""
    if isinstance(value, Tensor) and id(value) not in memo:
        return value.detach().clone()
    return _deep(value, memo)


def _deep(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, or a refusal."""
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise IsolationError(
            f"every pass runs on a copy of module and loss, but {type(value).__name__} cannot be copied: {error}; "
            "keep it outside of the module, or give its class a __deepcopy__"
        ) from error


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a part of one that lies on several ranks."""
    found = sys.modules.get("torch.distributed.tensor")  # where nobody imported it, nothing is sharded
    return found is not None and isinstance(tensor, found.DTensor)


def wrapped(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules, by name, that were given to `fully_shard`."""
    found = sys.modules.get("torch.distributed.fsdp")
    if found is None:
        return []
    return [(name, each) for name, each in module.named_modules() if isinstance(each, found.FSDPModule)]


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name; those that `fully_shard` put together for a forward pass of the user's are let go."""
    for _, each in wrapped(module):
        each.reshard()  # type: ignore[operator]
    return dict(module.named_parameters())


def need_own_memory(tensors: Mapping[str, Tensor]) -> None:
    """Refuse a trainable parameter in whose memory another parameter or buffer lies: one would undo the other."""
    places: dict[int, str] = {}
    for name, tensor in tensors.items():
        at = _place(tensor)
        other = places.setdefault(at, name) if at else name
        alone = other == name or not (tensor.requires_grad or tensors[other].requires_grad)
        remedy = "tie them by their names: b.weight = a.weight, not b.weight.data = a.weight.data"
        need(alone, "a trainable parameter must have memory of its own", parameters=[other, name], remedy=remedy)


def _place(tensor: Tensor) -> int:
    """Where an ordinary tensor lies; 0 for one that holds nothing, or lies nowhere (on the device "meta")."""
    ordinary = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return tensor.data_ptr() if ordinary and tensor.numel() else 0


def named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by all their names: what is held in two places has two."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def local(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    found: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor.detach()
    return found


def part_of(whole: Tensor, sharded: Any) -> Tensor:
    """What this rank holds of a whole tensor that is sharded like another."""
    dim, mesh = sharded.placements[0].dim, sharded.device_mesh
    begin, length = spans(whole.shape[dim], mesh.size())[mesh.get_local_rank()]
    return whole.narrow(dim, begin, length)


def spans(length: int, ranks: int) -> list[tuple[int, int]]:
    """Where each rank's part of a dimension begins, and how long it is; the last ranks may have nothing.

    >>> spans(5, 2), spans(2, 3)
    ([(0, 3), (3, 2)], [(0, 1), (1, 1), (2, 0)])
    """
    each = -(-length // ranks)
    ends = [min(length, each * rank) for rank in range(ranks + 1)]
    return [(begin, end - begin) for begin, end in pairwise(ends)]


def bare(module: nn.Module) -> tuple[type[nn.Module], dict[str, Any]]:
    """A module's class and attributes without what `fully_shard` put there."""
    attributes = module.__dict__
    if _MARK not in attributes:
        return type(module), attributes
    sharding = sys.modules["torch.distributed.fsdp"].FSDPModule
    kind = next(each for each in type(module).__mro__ if not issubclass(each, sharding))
    kept = {
        n: v for n, v in attributes.items() if not n.startswith(_STATE) and n not in (_MARK, "_fsdp_use_orig_params")
    }
    return kind, {name: _without_hooks(name, value) for name, value in kept.items()}


def _without_hooks(name: str, value: Any) -> Any:
    """Hooks without torch's for sharding: a twin runs without them, and never loads a state."""
    if name in _HOOKS:
        return type(value)(
            (at, hook) for at, hook in value.items() if not hook.__module__.startswith("torch.distributed")
        )
    return type(value)() if name.startswith(_STATE_HOOKS) and isinstance(value, dict) else value


def emptied(twin: nn.Module) -> nn.Module:
    """A twin whose sharded parameters have their shapes but no numbers; tied ones stay tied."""
    empty: dict[int, nn.Parameter] = {}
    for owner in twin.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and is_sharded(parameter):
                made = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
                owner._parameters[name] = empty.setdefault(id(parameter), nn.Parameter(made, requires_grad=False))
    return twin
