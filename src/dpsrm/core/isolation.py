"""How it is known that an example's contribution depends on no other: by construction, or by the user's word."""

from __future__ import annotations

from enum import Enum


class Isolation(str, Enum):
    """What the sensitivity of a clipped sum rests on.

    ALONE: module and loss are run on each example alone, so nothing in them can mix, permute or couple examples.
    CHECKED: they are run on whole batches, because the user says that they treat every example by itself; each release
    compares a few random examples with what they give alone. A comparison of a few is no proof: the guarantee then
    rests on the user's word, and ledger and certificate say so.
    """

    ALONE = "alone"
    CHECKED = "checked"
