"""Numbers of the user's as tensors: inputs, targets, positions and integers, or an error that names what is wrong."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need

Indices = npt.NDArray[np.integer[Any]]


def as_tensor(values: object, name: str) -> Tensor:
    """A tensor of an array's values, or an error that names the array.

    Edge cases: a list has no type but its numbers', which must be one for all: NumPy would make floats of everybody's
    whole numbers for one record's 0.5.
    """
    if isinstance(values, Tensor):
        return values.detach()
    need_unmasked(values, name)
    try:
        array = np.require(cast(Any, values), requirements=["C", "W"])
        if isinstance(values, (list, tuple)):
            need_one_type(values, name)
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        kind = getattr(values, "dtype", type(values).__name__)
        raise InputError(f"{name} must be an array of numbers; got {kind}; encode text first") from error


def need_unmasked(values: object, name: str) -> None:
    """Refuse arrays, and lists of them, whose values hide behind a mask: all but NumPy itself would read them.

    >>> need_unmasked(np.ma.masked_array([7, 8], mask=[True, False]), "ids")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: ids must not be hidden by a mask; got hidden=1; put a declared value in their place: \
ids.filled(…)
    """
    parts = values if isinstance(values, (list, tuple)) else (values,)
    hidden = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    rule, remedy = f"{name} must not be hidden by a mask", f"put a declared value in their place: {name}.filled(…)"
    need(hidden == 0, rule, hidden=hidden, remedy=remedy)


def need_one_type(values: object, name: str) -> None:
    """Refuse lists, at any depth, and arrays of objects whose elements have several types, so that one decides for all.

    >>> need_one_type([1, np.int64(2)], "y")
    >>> need_one_type([1, "1"], "y")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: a list of y must hold values of one type; got types=['int64', 'str']; give an array \
of a declared type: np.array(y, dtype=…)
    """
    found = _types(values)
    need(
        len(found) <= 1,
        f"a list of {name} must hold values of one type",
        types=sorted(found),
        remedy=f"give an array of a declared type: np.array({name}, dtype=…)",
    )


def _types(values: Any) -> set[str]:
    """The types of the elements of lists and arrays of objects, each by itself; texts are one type, however long."""
    array = np.asarray(values)
    inside = array.ndim > 0
    if inside and not hasattr(values, "__array__"):  # a list, or what NumPy takes for one: it declares no type
        return set[str]().union(*map(_types, values))
    if array.dtype.kind != "O":
        return {"str" if array.dtype.kind == "U" else str(array.dtype)}
    return set[str]().union(*map(_types, array.tolist())) if inside else {type(values).__name__}


def as_inputs(values: object) -> Tensor:
    """Inputs with their floats in torch's default type; integers (token ids, pixels) stay what they are."""
    tensor = as_tensor(values, "inputs")
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def as_targets(values: object) -> Tensor:
    """Targets: classes as int64, real numbers in torch's default type."""
    tensor = as_tensor(values, "targets")
    return tensor.to(torch.get_default_dtype() if tensor.is_floating_point() else torch.int64)


def as_positions(indices: Indices, n: int) -> npt.NDArray[np.int64]:
    """Indices as int64, each inside 0..n-1."""
    positions = as_integers(indices)
    need_inside(positions, n)
    return positions


def as_integers(indices: Indices) -> npt.NDArray[np.int64]:
    """Indices as a writable vector of int64."""
    array = np.asarray(indices)
    need(array.ndim == 1, "indices must be one-dimensional", shape=array.shape)
    if array.dtype.kind not in "iu" and array.size:
        need(False, "indices must be integers", dtype=str(array.dtype))
    return array.astype(np.int64, copy=not array.flags.writeable)


def need_inside(positions: npt.NDArray[np.int64], n: int) -> None:
    """Refuse positions outside 0..n-1."""
    if positions.size:
        least, largest = int(positions.min()), int(positions.max())
        need(least >= 0 and largest < n, "indices must lie in 0..n-1", n=n, least=least, largest=largest)
