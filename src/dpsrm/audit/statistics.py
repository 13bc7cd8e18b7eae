"""Statistics of noise and draws, each with a false-alarm rate of at most one in a thousand million."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from dpsrm.audit.rehearsal import RehearsedCase, Transcript
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending, ZcdpRelease
from dpsrm.core.secret import LARGE, ClippedScores, ClippedSum, Streams
from dpsrm.mechanisms import Airlock, Selection
from dpsrm.mechanisms.watched import Passage, WatchedAirlock, multiplier
from dpsrm.runs.book import MemoryBook
from dpsrm.runs.ledger import Header
from dpsrm.training import Step

ALARM = 1e-9
"""The most a check may raise the alarm where nothing is wrong."""
Array = npt.NDArray[np.float64]


def noise_of(passage: Passage) -> Array:
    """The noise in a release, in units of the standard deviation it is said to have."""
    added = passage.sampling.batch * passage.released - passage.exact
    return (added / passage.std).double().numpy().ravel()


def own_noise(transcripts: Sequence[Transcript]) -> Iterator[str]:
    """Every release has noise of the claimed size, normal, and of its own."""
    found = [[noise_of(p) for p in one.passages if not p.choice and p.std > 0] for one in transcripts]
    together = np.concatenate([x for one in found for x in one]) if any(found) else np.zeros(0)
    if not len(together):
        return
    yield from normal(together, "the noise in the releases")
    for one in found:
        for i in range(len(one)):
            for j in range(i):
                if _alike(one[i], one[j]):
                    yield f"releases {j} and {i} have the same noise, or noise that depends on each other"
                    return


def normal(x: Array, what: str) -> Iterator[str]:
    """Whether numbers that should be standard normal have that size and shape."""
    square, n = float(x @ x), len(x)
    size = math.sqrt(square / n)
    if min(stats.chi2.cdf(square, n), stats.chi2.sf(square, n)) < ALARM / 4:
        yield f"{what} has {size:.3f} of the claimed standard deviation (n = {n})"
    elif stats.kstest(x, "norm").pvalue < ALARM / 4:
        yield f"{what} is not normal (n = {n}, mean {x.mean():.3g})"


def _alike(x: Array, y: Array) -> bool:
    """Whether two releases' noise is correlated, or the same at any place."""
    if len(x) != len(y):
        return False
    n, r = len(x), float(x @ y) / math.sqrt(float(x @ x) * float(y @ y) or 1.0)
    if n <= 3:
        return bool(np.abs(x - y).max() < 1e-6)
    limit = stats.norm.isf(ALARM / 1000) / math.sqrt(n)
    return abs(r) > min(limit, 1 - 1e-9) or bool((np.abs(x - y) < 1e-12).mean() > 0.5)


@lru_cache(maxsize=2)
def meter(adjacency: Adjacency) -> tuple[str, ...]:
    """The mechanisms by themselves, many times: Gaussian releases small and large, and noisy choices."""
    return tuple(_meter(adjacency))


def _meter(adjacency: Adjacency) -> Iterator[str]:
    """What is wrong with the mechanisms."""
    header = Header(adjacency=adjacency, epsilon=None, delta=None, accountant="none", private_randomness=False)
    streams = Streams.seeded(1)
    nothing = Spending.of([], adjacency=adjacency)
    door = WatchedAirlock(Airlock(MemoryBook(header), planned=nothing, epsilon_of=lambda _: 0.0, noise=streams.noise))
    some = Sampling(scheme=Scheme.POISSON, population=100, batch=7)
    for size in (LARGE, LARGE + 1):
        streams.seek(size)
        total = ClippedSum(secret=torch.zeros(size, dtype=torch.float64), bound=0.7, rows=9)
        door.release(total, sampling=some, noise_multiplier=1.3)
        yield from _metered(door.passages[-1], GaussianRelease(noise_multiplier=1.3, sampling=some), adjacency)
    full = Sampling(scheme=Scheme.FULL, population=9, batch=9)
    streams.seek(LARGE + 2)
    total = ClippedSum(secret=torch.zeros(LARGE, dtype=torch.float64), bound=0.7, rows=9)
    door.release_zcdp(total, sampling=full, rho=0.3)
    yield from _metered(door.passages[-1], ZcdpRelease(rho=0.3), adjacency)
    for selection in Selection:
        yield from _choices(door, selection, full, adjacency)


def _metered(passage: Passage, event: GaussianRelease | ZcdpRelease, adjacency: Adjacency) -> Iterator[str]:
    """One large release of zeros: its noise is that of what is charged for it, by the definition of the event."""
    std = multiplier(event) * (2 if adjacency is Adjacency.REPLACE_ONE else 1) * 0.7
    if not math.isclose(passage.std, std, rel_tol=1e-9):
        yield f"noise of {passage.std:.4g} is claimed where {std:.4g} is charged"
    added = (passage.sampling.batch * passage.released / std).numpy()
    yield from normal(added, f"the noise of a release of {len(added)} numbers")
    if Charge(event, 1) not in [Charge(c.event, 1) for c in passage.spent.charges]:
        yield f"{event} was made and not charged"


_CHOICES, _GAP = 4000, 0.75


def _choices(door: WatchedAirlock, selection: Selection, full: Sampling, adjacency: Adjacency) -> Iterator[str]:
    """Noisy choices among four: the least score wins as often as the mechanism's definition says."""
    rho, bound = 0.5, 1.5
    spread = bound * (2 if adjacency is Adjacency.REPLACE_ONE else 1)
    scores = ClippedScores(secret=(0.0, _GAP * spread, _GAP * spread, _GAP * spread), bound=bound, rows=9)
    hits = sum(door.select(scores, sampling=full, rho=rho, selection=selection) == 0 for _ in range(_CHOICES))
    right = _chance(selection, rho)
    if stats.binomtest(hits, _CHOICES, right).pvalue < ALARM:
        yield f"a choice ({selection.value}) picks the best in {hits / _CHOICES:.3f} of cases, not in {right:.3f}"


def _chance(selection: Selection, rho: float) -> float:
    """P[the least of four scores wins], the others `_GAP` spreads behind."""
    if selection is Selection.GUMBEL:  # the exponential mechanism: ε = √(8ρ), weights exp(−ε·score/spread)
        worse = math.exp(-math.sqrt(8 * rho) * _GAP)
        return 1 / (1 + 3 * worse)
    # permute-and-flip, ε = √(2ρ): P[Z₀ + gap ≥ max of three Z], Z exponential with rate ε
    w = math.exp(-math.sqrt(2 * rho) * _GAP)
    return 1 - 3 * w / 2 + 3 * w**2 / 3 - w**3 / 4


def sampler(step: Step, case: RehearsedCase, *, draws: int = 600) -> Iterator[str]:
    """Draws of the production sampler: sizes, shares, pairs and freshness are those of what is charged."""
    if case.plan.method.adaptive:
        return
    sampling = case.plan.sampling(case.plan.schedule.batch)
    batches = [step.draw(ahead=1 + k).indices for k in range(draws)]
    n, q = sampling.population, sampling.rate
    there = np.zeros((draws, n), dtype=np.float64)
    for k, drawn in enumerate(batches):
        if len(drawn) and not 0 <= drawn.min() <= drawn.max() < n:
            yield "a record is drawn that does not exist"
            return
        np.add.at(there[k], drawn, 1)
    if there.max(initial=0) > 1:
        yield "a record is drawn twice into one batch"
    yield from _shares(there, sampling, q)


def _shares(there: Array, sampling: Sampling, q: float) -> Iterator[str]:
    """Sizes of batches, shares of records, pairs in a batch, and overlaps of batches."""
    draws, n = there.shape
    if sampling.scheme is Scheme.FULL:
        if there.min() < 1:
            yield "a full batch leaves records out"
        return
    counts = there.sum(1)
    if sampling.scheme is Scheme.WOR and (counts != sampling.batch).any():
        yield f"a batch without replacement has not {sampling.batch} records"
    if sampling.scheme is Scheme.POISSON:
        yield from _binomial_sizes(counts, n, q)
    tails = [min(stats.binom.cdf(c, draws, q), stats.binom.sf(c - 1, draws, q)) for c in there.sum(0)]
    if min(tails) < ALARM / (2 * n):
        yield "some records are drawn more often than others, or than is charged"
    pair = q * (sampling.batch - 1) / max(1, n - 1) if sampling.scheme is Scheme.WOR else q * q
    yield from _rate((there * np.roll(there, 1, axis=1)).sum(), draws * n, pair, "neighbours are drawn together")
    for apart, steps in ((1, "two steps"), (2, "every other step")):
        common = (there[apart:] * there[:-apart]).sum(1)
        yield from _mean(common, n * q * q, f"the batches of {steps} have records in common")


def _binomial_sizes(counts: Array, n: int, q: float) -> Iterator[str]:
    """Poisson batches have binomial sizes: mean, spread, parity and emptiness."""
    mean, var = n * q, n * q * (1 - q)
    yield from _mean(counts, mean, "Poisson batches have a size")
    draws = len(counts)
    if var == 0:
        return
    excess = float(((counts - mean) ** 2).sum()) / var
    kurt = 2 + (1 - 6 * q * (1 - q)) / var
    if abs(excess - draws) / math.sqrt(draws * kurt) > stats.norm.isf(ALARM / 2) + 1:
        yield f"the sizes of Poisson batches vary {math.sqrt(excess / draws):.3f} times as much as they should"
    even = 0.5 * (1 + (1 - 2 * q) ** n)
    yield from _rate(float((counts % 2 == 0).sum()), draws, even, "Poisson batches are of even size")
    yield from _rate(float((counts == 0).sum()), draws, (1 - q) ** n, "Poisson batches are empty")


def _rate(hits: float, trials: int, expected: float, what: str) -> Iterator[str]:
    """Whether something happens as often as it should."""
    if 0 <= hits <= trials and stats.binomtest(round(hits), trials, min(1.0, expected)).pvalue < ALARM:
        yield f"{what} in {hits / trials:.4f} of cases, not in {expected:.4f}"


def _mean(values: Array, expected: float, what: str) -> Iterator[str]:
    """Whether a mean is what it should be, by its own spread."""
    spread = float(values.std(ddof=1)) / math.sqrt(len(values))
    if abs(float(values.mean()) - expected) > (stats.norm.isf(ALARM / 2) + 1) * spread + 1e-9 * (1 + expected):
        yield f"{what}: {values.mean():.3f} on average, not {expected:.3f}"
