"""What the linear engine and its compiled code hand each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Rows = tuple[Array, Array, Array, Array]
"""starts, columns, values, target per row."""
Model = tuple[int, int, float]
"""Which loss, D, and 1 if there is a bias."""
People = tuple[Array, Array]
"""Rows of all persons of a batch, and where each person's begin in them (one more at the end)."""
Asked = tuple[Array, Array, float]
"""(clip, weight, 1 for AUTO-S) per part, (M, K) coefficients, the margin by which clips are shrunk."""
