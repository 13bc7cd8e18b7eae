"""What every record source is given, checked: positions, numbers, and arrays that become tensors."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need

Indices = npt.NDArray[np.integer[Any]]


def as_tensor(values: object, name: str) -> Tensor:
    """A tensor of an array's values, or an error that names the array."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.require(cast(Any, values), requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise InputError(f"{name} must be an array of numbers; got {kind}; encode text first") from error


def as_inputs(values: object, dtype: torch.dtype | None = None) -> Tensor:
    """Inputs with their floats in one type; integers (token ids, pixels) stay what they are."""
    tensor = as_tensor(values, "inputs")
    if dtype is None and not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype or torch.get_default_dtype())


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


def need_finite(values: Tensor, name: str, *, rows: list[int] | None = None) -> None:
    """Refuse NaN and infinity, naming where (counted from 0, as arrays are)."""
    if not values.is_floating_point() or torch.isfinite(values).all():
        return
    row, *column = torch.nonzero(~torch.isfinite(values))[0].tolist()
    value = values[row].flatten()[~torch.isfinite(values[row].flatten())][0].item()
    need(
        False,
        f"{name} must be finite",
        row=row if rows is None else rows[row],
        column=column[0] if len(column) == 1 else tuple(column),
        value=value,
        remedy="remove the record or replace the value by a fixed one",
    )
