"""`rdp9`: the bound the paper starts from — Thm 9 of Wang–Balle–Kasiviswanathan, Mironov's conversion.

*Guarantee*: sound for WOR sampling under replace-one; a baseline, looser than `rdp` and `pld`.

>>> from dpsrm.accounting import accountant
>>> from dpsrm.core.events import Charge, Sampling, Spending
>>> wor = Sampling(scheme=Scheme.WOR, population=60000, batch=512)
>>> release = GaussianRelease(noise_multiplier=2.8, sampling=wor)
>>> spent = Spending.of([Charge(release, 1172)], adjacency=Adjacency.REPLACE_ONE)
>>> round(accountant("rdp9").epsilon(spent, 1e-5).epsilon, 2)
1.2
"""

from __future__ import annotations

import numpy as np

from dpsrm.accounting import curves
from dpsrm.accounting.conversion import MIRONOV
from dpsrm.accounting.curves import Array
from dpsrm.accounting.renyi import Theorem
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, GaussianRelease, Scheme


def _sampled(event: GaussianRelease, adjacency: Adjacency, orders: Array) -> Array:
    """ρ(α) of one release on a sampled batch."""
    need_wor(event, "rdp9")
    general = curves.wor_general(event.sampling.rate, event.noise_multiplier, orders)
    return np.minimum(general, curves.gaussian(event.noise_multiplier, orders))


def need_wor(event: GaussianRelease, name: str) -> None:
    """Refuse a batch that was not drawn without replacement."""
    if event.sampling.scheme is not Scheme.WOR:
        raise InputError(
            f"the {name} accountant covers sampling without replacement only; "
            f"got sampling={event.sampling.scheme.value!r}; use --sampling wor or --accountant pld"
        )


RDP9 = Theorem(
    name="rdp9",
    source="Thm 9 of Wang–Balle–Kasiviswanathan 2019",
    orders=np.arange(2, 513, dtype=np.float64),
    sampled=_sampled,
    conversion=MIRONOV,
    replace_one_only=True,
)
