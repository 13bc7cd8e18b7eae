"""One column of targets in which no record decides what type the others have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpsrm.core.errors import need_extra
from dpsrm.data.conversion import need_one_type, need_unmasked

need_extra("sklearn", extra="sklearn")
from sklearn.utils.validation import column_or_1d  # noqa: E402


def one_column(y: Any, *, warn: bool = False) -> npt.NDArray[Any]:
    """`y` as an array of one dimension, refused if a list or an array of objects holds several types.

    Guarantee: each element is a function of its record alone. NumPy would make texts of everybody's numbers for one
    record's "1", and floats of everybody's long whole numbers for one record's 0.5.
    """
    need_unmasked(y, "y")
    need_one_type(y, "y")
    column: npt.NDArray[Any] = column_or_1d(y, warn=warn)
    return column


def codes_of(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The place of each label among the classes, -1 for none; compared as Python does, which rounds no number.

    >>> codes_of(np.array([2**53 + 1, 7]), np.array([2.0**53, 7.0])).tolist()
    [-1, 1]
    """
    places = {name: at for at, name in enumerate(classes.tolist())}
    return np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
