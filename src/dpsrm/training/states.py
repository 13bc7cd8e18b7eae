"""Trees of plain values and tensors as JSON beside named tensors: what states are saved as, without pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpsrm.core.errors import ResumeError


def flatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The JSON form of `tree`; its tensors are copied into `tensors` under new names.

    >>> found = {}
    >>> flatten({"a": (1, torch.ones(2))}, found), list(found)
    ({'map': [['a', {'tuple': [1, {'tensor': 't0'}]}]]}, ['t0'])
    """
    if isinstance(tree, Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(tree, dict):
        return {"map": [[flatten(key, tensors), flatten(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return {type(tree).__name__: [flatten(value, tensors) for value in tree]}
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": str(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"a state must consist of plain values and tensors; got {type(tree).__name__}")


def unflatten(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `flatten` was given; `ResumeError` if `form` is not one."""
    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if isinstance(form, dict) and len(form) == 1:
        kind, value = next(iter(form.items()))
        if kind == "tensor" and value in tensors:
            return tensors[value]
        if kind == "map" and isinstance(value, list):
            return {unflatten(key, tensors): unflatten(item, tensors) for key, item in value}
        if kind == "list" and isinstance(value, list):
            return [unflatten(item, tensors) for item in value]
        if kind == "tuple" and isinstance(value, list):
            return tuple(unflatten(item, tensors) for item in value)
        if kind == "float" and value in ("inf", "-inf", "nan"):
            return float(value)
    raise ResumeError(f"the checkpoint's state is malformed: {str(form)[:100]}")
