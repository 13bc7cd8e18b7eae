"""Accounting: from what was released to the (ε, δ) it costs. NumPy and SciPy only, never torch.

    spending ──accountant──▶ Guarantee          calibrate_noise, max_steps, epsilon_curve: the way back

Four accountants, one interface (docs/guarantees.md says what each proves):

- `rdp`    Rényi, best known bounds and conversion
- `rdp9`   the general bound the paper starts from; WOR under replace-one only
- `paper`  the paper's closed form with its conditions; often "no guarantee"
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dpsrm.accounting.calibrate import calibrate_noise, epsilon_curve, max_steps
from dpsrm.accounting.guarantee import Accountant, Condition, Guarantee
from dpsrm.accounting.paper import PaperAccountant
from dpsrm.accounting.rdp import RdpAccountant, RdpCurve, rdp_curve
from dpsrm.accounting.rdp9 import Rdp9Accountant
from dpsrm.core.errors import InputError

ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {each.name: each for each in (RdpAccountant(), Rdp9Accountant(), PaperAccountant())}
)


def accountant(name: str) -> Accountant:
    """The accountant called `name`.

    >>> accountant("moments")
    Traceback (most recent call last):
        ...
    dpsrm.core.errors.InputError: no such accountant; got name='moments'; choose one of rdp, rdp9, paper
    """
    if name not in ACCOUNTANTS:
        raise InputError(f"no such accountant; got name={name!r}; choose one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[name]


__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Condition",
    "Guarantee",
    "PaperAccountant",
    "Rdp9Accountant",
    "RdpAccountant",
    "RdpCurve",
    "accountant",
    "calibrate_noise",
    "epsilon_curve",
    "max_steps",
    "rdp_curve",
]
