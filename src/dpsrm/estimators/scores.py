"""How good a try is, told through the airlock like everything else that leaves private records."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dpsrm.accounting import accountant
from dpsrm.core.errors import need
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.core.secret import ClippedSum, Streams
from dpsrm.mechanisms import Airlock
from dpsrm.runs.book import Book, MemoryBook
from dpsrm.runs.ledger import Header, Ledger


def noisy_score(merits: npt.NDArray[np.float64], streams: Streams, *, noise_multiplier: float, delta: float) -> float:
    """The mean of merits in [0, 1], one per held-out record, with noise of `noise_multiplier` times its sensitivity.

    Guarantee: replacing one record moves the sum by at most 1; charged and noised by the airlock. The charge is kept in
    a ledger that goes with the search: what the search costs is stated by it as a whole.
    """
    m = len(merits)
    inside = bool(((merits >= 0) & (merits <= 1)).all())
    need(m > 0 and inside, "merits lie in 0 … 1, one per record", records=m)
    everything = Sampling(scheme=Scheme.FULL, population=m, batch=m)
    release = GaussianRelease(noise_multiplier=noise_multiplier, sampling=everything)
    planned = Spending.of([Charge(release, 1)], adjacency=Adjacency.REPLACE_ONE)
    proof = accountant("rdp")
    header = Header(
        adjacency=planned.adjacency,
        epsilon=proof.epsilon(planned, delta).epsilon,
        delta=delta,
        accountant="rdp",
        private_randomness=streams.private,
    )
    total = ClippedSum(secret=torch.tensor([float((merits - 0.5).sum())], dtype=torch.float64), bound=0.5, rows=m)

    def told(book: Book) -> float:
        lock = Airlock(
            book, planned=planned, epsilon_of=lambda spent: proof.epsilon(spent, delta).epsilon, noise=streams.noise
        )
        return 0.5 + float(lock.release(total, sampling=everything, noise_multiplier=noise_multiplier)[0])

    if not streams.private:
        return told(MemoryBook(header))
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder, "score.jsonl"), header) as ledger:
        return told(ledger)
