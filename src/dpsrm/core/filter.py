"""A zCDP filter: an adaptive run may go on as long as the sum of its ρ stays within one fixed before it began.

Each ρ may depend on earlier releases. If Σρ ≤ ρ* surely, the whole run is ρ*-zCDP (Feldman & Zrnic 2021, with the
bound α·ρ* at every order α at once: the one condition Σρ ≤ ρ* implies them all). What was really spent proves nothing
smaller, because where the run stopped depends on the records.
"""

from __future__ import annotations

from fractions import Fraction

from dpsrm.core.events import Charge, Spending, ZcdpRelease


def zcdp_sum(spending: Spending) -> Fraction | None:
    """Σ count·ρ without any rounding, or None if something in `spending` has no zCDP price.

    >>> from dpsrm.core.events import Adjacency
    >>> zcdp_sum(Spending.of([Charge(ZcdpRelease(rho=0.25), 3)], adjacency=Adjacency.REPLACE_ONE))
    Fraction(3, 4)
    """
    total = Fraction(0)
    for charge in spending.charges:
        if not isinstance(charge.event, ZcdpRelease):
            return None
        total += Fraction(charge.event.rho) * charge.count
    return total


def fits_filter(spending: Spending, rho: float) -> bool:
    """Whether `spending` is priced in zCDP and its sum is at most ρ*."""
    total = zcdp_sum(spending)
    return total is not None and total <= Fraction(rho)


def whole_filter(spending: Spending, rho: float) -> Spending:
    """What a filtered run costs, whatever it released: one ρ*-zCDP release."""
    return Spending.of([Charge(ZcdpRelease(rho=rho), 1)], adjacency=spending.adjacency)
