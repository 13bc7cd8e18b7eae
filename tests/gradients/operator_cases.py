"""torch's own list of operators with sample inputs, which its tests use: each a loss of a few tensors of one example.

The list is imported from torch.testing._internal, which needs `expecttest` for a base class of tests that nobody runs.
"""

import sys
import types
import unittest
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

MOST = 400
"""Numbers in a sample's tensor: larger ones only cost time."""
DRAWS = ("bernoulli", "cauchy", "dropout", "exponential", "geometric", "log_normal", "lowrank", "multinomial")
RANDOM = (*DRAWS, "normal", "rand", "uniform", "fractional_max_pool", "feature_alpha", "rrelu")
UNSAFE = ("bincount", "segment_reduce", "jiterator", "histogram")
"""Operators that take a record's number for a size (and gigabytes), or that crash torch, or are for GPUs."""


@dataclass(frozen=True)
class Case:
    """`function(tensors)` of an example's tensors, some of which it shares with all other examples."""

    name: str
    function: object
    tensors: tuple[Tensor, ...]
    own: tuple[int, ...]

    @property
    def random(self):
        return any(word in self.name for word in RANDOM)

    def output(self, own):
        """All numbers that the operator gives, in one row."""
        tensors = list(self.tensors)
        for at, tensor in zip(self.own, own, strict=True):
            tensors[at] = tensor
        found = [as_numbers(value) for value in tree_leaves(self.function(tensors))]
        return torch.cat([value for value in found if value is not None] or [torch.zeros(1, dtype=torch.float64)])


def as_numbers(value):
    if isinstance(value, (bool, int, float)):
        return torch.full((1,), float(value), dtype=torch.float64)
    if not isinstance(value, Tensor):
        return None
    value = value if value.layout is torch.strided else value.to_dense()
    return (torch.view_as_real(value) if value.is_complex() else value).double().reshape(-1)


def operators():
    """torch's list; imported when it is asked for, which takes seconds."""
    if "expecttest" not in sys.modules:
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def cases(operator, *, samples):
    """Some samples of an operator, also written in place; all tensors an example's own, or the first, or the others."""
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in operator.dtypes), None)
    if dtype is None or any(word in operator.name for word in UNSAFE):
        return
    torch.manual_seed(0)
    given = list(operator.sample_inputs("cpu", dtype))
    chosen = sorted({at * len(given) // samples for at in range(samples)}) if given else []
    for at in chosen:
        for function in filter(None, (operator.op, operator.get_inplace())):
            yield from _patterns(f"{operator.name}.{operator.variant_test_name} {at}", function, given[at])


def known():
    """Calls by which examples reached each other once, where torch's samples hold none that shows it."""
    row, word = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([1])
    square = row.expand(5, 5) + torch.eye(5)
    dynamically = partial(torch.quantize_per_tensor_dynamic, dtype=torch.qint8, reduce_range=False)
    calls = {
        "prod": (lambda t: t[0].prod(), (row,)),
        "index_fill": (lambda t: t[0].index_fill(0, t[1], 0.0), (row, word)),
        "index_fill_": (lambda t: t[0].clone().index_fill_(0, t[1], 0.0), (row, word)),
        "addbmm_": (lambda t: t[0][:1].clone().addbmm_(t[0].expand(2, 5, 5), torch.ones(2, 5, 5)), (row,)),
        "roll": (lambda t: t[0].sum().roll(1), (row,)),
        "resize_": (lambda t: t[0].detach().clone().resize_(3), (row,)),
        "lstsq": (
            lambda t: torch.linalg.lstsq(t[0], t[0][..., :2] + 1, driver="gelsd").residuals,
            (torch.stack([square[:, :3]] * 2),),
        ),
        "empty": (lambda t: t[0] + torch.empty(5, 5).nan_to_num(), (row,)),
        "quantize": (lambda t: t[0] * dynamically(t[0].detach()).dequantize(), (row,)),
    }
    for name, (call, tensors) in calls.items():
        yield Case(name, call, tensors, tuple(range(len(tensors))))


def _patterns(name, function, sample):
    flat, form = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [at for at, value in enumerate(flat) if isinstance(value, Tensor) and value.layout is torch.strided]
    tensors = tuple(flat[at].detach().clone() for at in places)
    if not tensors or max(tensor.numel() for tensor in tensors) > MOST:
        return

    def call(values):
        new = list(flat)
        for at, value in zip(places, values, strict=True):
            new[at] = value
        first, args, kwargs = tree_unflatten(new, form)
        return function(first, *args, **kwargs)

    every = tuple(range(len(tensors)))
    for own in dict.fromkeys((every, every[:1], every[1:])):
        if own:
            yield Case(name, call, tensors, own)


def disturbances(tensor):
    """What one record may hold in a tensor's place to reach others."""
    if tensor.dtype is torch.bool:
        return [torch.zeros_like(tensor), torch.ones_like(tensor)]
    if tensor.dtype.is_floating_point:
        zero, nan = tensor.clone(), tensor.clone()
        zero.view(-1)[len(zero.view(-1)) // 2 :][:1] = 0
        nan.view(-1)[:1] = float("nan")
        return [zero, nan, *(torch.full_like(tensor, value) for value in (0.0, float("nan"), 1e30, -3.0))]
    if tensor.is_complex():
        return [torch.zeros_like(tensor), torch.full_like(tensor, float("nan"))]
    top = int(tensor.max()) + 1 if tensor.numel() else 1
    return [torch.full_like(tensor, value) for value in (-1, 0, top, top + 3, -top - 2, 99)]
