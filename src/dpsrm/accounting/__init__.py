"""Accounting: from what was released to the (ε, δ) it costs. NumPy and SciPy only, never torch.

    spending ──accountant──▶ Guarantee          calibrate_noise, max_steps, epsilon_curve: the way back

Four accountants, one interface (docs/guarantees.md says what each proves):

- `pld`    tight composition of privacy-loss distributions (the default)
- `rdp`    Rényi, best known bounds and conversion
- `rdp9`   the general bound the paper starts from; WOR under replace-one only
- `paper`  the paper's closed form with its conditions; often "no guarantee"
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dpsrm.accounting.calibrate import calibrate_noise, epsilon_curve, max_steps
from dpsrm.accounting.guarantee import Accountant, Condition, Guarantee, strict_epsilon
from dpsrm.accounting.paper import PAPER
from dpsrm.accounting.pld import PldAccountant, attack_epsilon
from dpsrm.accounting.rdp import RDP, RdpCurve, rdp_curve
from dpsrm.accounting.rdp9 import RDP9
from dpsrm.accounting.renyi import RenyiAccountant
from dpsrm.accounting.selection import (
    expected_runs,
    runs_to_gamma,
    searched_guarantee,
    select_epsilon,
    selection_curve,
)
from dpsrm.core.errors import InputError

ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {"pld": PldAccountant(), **{each.name: RenyiAccountant(each) for each in (RDP, RDP9, PAPER)}}
)


def accountant(name: str) -> Accountant:
    """The accountant called `name`.

    >>> accountant("moments")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: no such accountant; got name='moments'; choose one of pld, rdp, rdp9, paper
    """
    if name not in ACCOUNTANTS:
        raise InputError(f"no such accountant; got name={name!r}; choose one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[name]


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
