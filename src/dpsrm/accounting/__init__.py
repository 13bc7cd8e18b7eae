"""Accounting: from what was released to the (ε, δ) it costs. NumPy and SciPy only, never torch.

    spending ──accountant──▶ Guarantee          calibrate_noise, max_steps, epsilon_curve: the way back

Four accountants, one interface (docs/guarantees.md says what each proves):

- `pld`    tight composition of privacy-loss distributions (the default)
- `rdp`    Rényi, best known bounds and conversion
- `rdp9`   the general bound the paper starts from; WOR under replace-one only
- `paper`  the paper's closed form with its conditions; often "no guarantee"
"""

from __future__ import annotations

from dpsrm.accounting.calibrate import ACCOUNTANTS, accountant, calibrate_noise, epsilon_curve, max_steps
from dpsrm.accounting.guarantee import Accountant, Condition, Guarantee, strict_epsilon
from dpsrm.accounting.pld import PldAccountant, attack_epsilon
from dpsrm.accounting.rdp import RdpCurve, rdp_curve
from dpsrm.accounting.renyi import RenyiAccountant
from dpsrm.accounting.selection import (
    expected_runs,
    runs_to_gamma,
    searched_guarantee,
    select_epsilon,
    selection_curve,
)

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Condition",
    "Guarantee",
    "PldAccountant",
    "RdpCurve",
    "RenyiAccountant",
    "accountant",
    "attack_epsilon",
    "calibrate_noise",
    "epsilon_curve",
    "expected_runs",
    "max_steps",
    "rdp_curve",
    "runs_to_gamma",
    "searched_guarantee",
    "select_epsilon",
    "selection_curve",
    "strict_epsilon",
]
