"""The paper's Tables 2 and 3: what it reports for nonconvex logistic regression."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table: means over 30 trials, with what it prints in brackets behind them.

    `objective` is what it calls test error; numerically it is the regularised objective on the test set.
    """

    objective: float
    objective_spread: float
    passes: float | None = None
    seconds: float | None = None
    gradient_norm: float | None = None
    gradient_spread: float | None = None


PAPER: dict[str, dict[tuple[str, float | None], PaperRow]] = {
    "a9a": {
        ("STORM (non-private)", None): PaperRow(0.3346, 0.007),
        ("DP-GD", 0.2): PaperRow(0.4155, 0.0107, 20, 1.245, 0.0953, 0.0212),
        ("DP-AGD", 0.2): PaperRow(0.3713, 0.0043, 360, 96.21, 0.0437, 0.0020),
        ("RRPSGD", 0.2): PaperRow(0.4019, 0.0033, 8, 39.61, 0.2175, 0.0116),
        ("DP-SRM", 0.2): PaperRow(0.3579, 0.0009, 4, 0.6007, 0.0528, 0.0042),
        ("DP-GD", 0.5): PaperRow(0.3859, 0.0057, 20, 1.261, 0.0866, 0.0129),
        ("DP-AGD", 0.5): PaperRow(0.3627, 0.0038, 365, 95.45, 0.0402, 0.0022),
        ("RRPSGD", 0.5): PaperRow(0.3861, 0.0028, 10, 52.32, 0.1454, 0.0126),
        ("DP-SRM", 0.5): PaperRow(0.3506, 0.0011, 5, 0.7383, 0.0502, 0.0061),
    },
    "ijcnn1": {
        ("STORM (non-private)", None): PaperRow(0.2096, 0.002),
        ("DP-GD", 0.2): PaperRow(0.3160, 0.0120, 20, 0.5180, 0.0184, 0.0024),
        ("DP-AGD", 0.2): PaperRow(0.2645, 0.0044, 346, 90.05, 0.0133, 0.0018),
        ("RRPSGD", 0.2): PaperRow(0.3110, 0.0106, 8, 47.64, 0.0175, 0.0023),
        ("DP-SRM", 0.2): PaperRow(0.2503, 0.0090, 4, 0.4748, 0.0117, 0.0008),
        ("DP-GD", 0.5): PaperRow(0.2717, 0.0081, 20, 0.4990, 0.0171, 0.0024),
        ("DP-AGD", 0.5): PaperRow(0.2416, 0.0029, 365, 94.28, 0.0397, 0.0025),
        ("RRPSGD", 0.5): PaperRow(0.3033, 0.0110, 10, 59.06, 0.0160, 0.0018),
        ("DP-SRM", 0.5): PaperRow(0.2341, 0.0042, 5, 0.4368, 0.0082, 0.0005),
    },
}
"""By problem, then by method and ε."""

FAMILY = "DP-SRM"
"""Rows whose label begins so are the paper's method or its variants."""
