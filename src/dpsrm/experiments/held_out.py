"""The part of a training set that settings are chosen on."""

from __future__ import annotations

import numpy as np
import torch

from dpsrm.data import Records

_PART = 5
"""One training record in so many is held out to tune on."""


def held_out(records: Records) -> tuple[Records, Records]:
    """The records without a random fifth, and that fifth; the same every time.

    Not every fifth in a row: ijcnn1 is a time series whose first ten features tell the time modulo ten.
    """
    held = torch.zeros(len(records), dtype=torch.bool)
    held[np.random.Generator(np.random.PCG64(0)).permutation(len(records))[: len(records) // _PART]] = True
    train, test = (Records(records.inputs[mask], records.targets[mask]) for mask in (~held, held))
    return train, test
