"""The airlock: charge first, never more than the budget, never another noise than was charged."""

import pytest
import torch

from dpsrm.core.errors import BudgetExceeded, InputError, LedgerError
from dpsrm.core.events import Adjacency, GaussianRelease, Sampling, Scheme, Spending, UnprotectedRelease
from dpsrm.core.ledger import Header, Ledger, read_ledger
from dpsrm.core.randomness import Streams
from dpsrm.core.secret import ClippedSum
from dpsrm.mechanisms import Airlock

WOR = Sampling(scheme=Scheme.WOR, population=100, batch=10)
NOTHING = Spending.of([], adjacency=Adjacency.REPLACE_ONE)
EVENT = GaussianRelease(noise_multiplier=2.0, sampling=WOR)


def total(rows=10, bound=1.0):
    return ClippedSum(secret=torch.zeros(4, dtype=torch.float64), bound=bound, rows=rows)


@pytest.fixture
def ledger(tmp_path):
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=10.0, delta=1e-5, accountant="count", private_randomness=True
    )
    with Ledger(tmp_path / "ledger.jsonl", header) as open_ledger:
        yield open_ledger


def airlock(ledger, planned=NOTHING):
    """An airlock whose accountant counts releases."""
    return Airlock(ledger, planned=planned, epsilon_of=lambda s: float(s.releases), noise=Streams.seeded(0).noise)


def test_the_charge_is_on_disk_before_the_value_exists(ledger, monkeypatch):
    door = airlock(ledger)
    monkeypatch.setattr("dpsrm.mechanisms.airlock.gaussian_noise", lambda *_: pytest.fail("noise before charge"))
    monkeypatch.setattr(type(ledger), "charge", lambda *_: (_ for _ in ()).throw(LedgerError("disk full")))
    with pytest.raises(LedgerError):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert door.released == 0


def test_what_is_charged_is_what_was_drawn_and_added(ledger):
    airlock(ledger).release(total(), sampling=WOR, noise_multiplier=2.0)
    assert read_ledger(ledger.path).spending == NOTHING.plus(EVENT, 1)


def test_the_release_that_would_overspend_is_not_made(ledger):
    door = airlock(ledger)
    for _ in range(10):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    with pytest.raises(BudgetExceeded, match="10 release"):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert door.released == 10
    assert read_ledger(ledger.path).spending.releases == 10


def test_blocks_are_charged_ahead_but_never_beyond_plan_or_budget(ledger):
    door = airlock(ledger, planned=NOTHING.plus(EVENT, 7))
    door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert read_ledger(ledger.path).spending.releases == 7
    for _ in range(6):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert read_ledger(ledger.path).lines == 2
    door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert read_ledger(ledger.path).spending.releases == 8


def test_a_block_larger_than_the_budget_shrinks_to_fit(ledger):
    door = airlock(ledger, planned=NOTHING.plus(EVENT, 64))
    for _ in range(10):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    with pytest.raises(BudgetExceeded):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)


def test_released_never_exceeds_charged(ledger):
    door = airlock(ledger, planned=NOTHING.plus(EVENT, 9))
    for made in range(1, 10):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
        assert read_ledger(ledger.path).spending.releases >= made == door.released


def test_without_noise_the_charge_says_so(tmp_path):
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=None, delta=None, accountant="none", private_randomness=True
    )
    with Ledger(tmp_path / "l", header) as open_ledger:
        airlock(open_ledger).release(total(), sampling=WOR, noise_multiplier=0.0)
    assert isinstance(read_ledger(tmp_path / "l").spending.charges[0].event, UnprotectedRelease)


def test_an_unbounded_sum_cannot_be_released_with_noise(ledger):
    with pytest.raises(InputError, match="sensitivity"):
        airlock(ledger).release(total(bound=float("inf")), sampling=WOR, noise_multiplier=1.0)
    assert ledger.spending.releases == 0


def test_the_sum_must_be_over_the_batch_that_is_charged(ledger):
    with pytest.raises(InputError, match="batch"):
        airlock(ledger).release(total(rows=9), sampling=WOR, noise_multiplier=1.0)


def test_an_empty_poisson_batch_still_releases_noise_over_the_expected_size(ledger):
    sampling = Sampling(scheme=Scheme.POISSON, population=100, batch=10)
    value = airlock(ledger).release(total(rows=0), sampling=sampling, noise_multiplier=1.0)
    assert (value != 0).all()
    assert read_ledger(ledger.path).spending.releases == 1


def test_add_remove_needs_half_the_noise(tmp_path):
    values = {}
    for adjacency in Adjacency:
        header = Header(adjacency=adjacency, epsilon=None, delta=None, accountant="none", private_randomness=True)
        with Ledger(tmp_path / adjacency.value, header) as open_ledger:
            door = Airlock(
                open_ledger,
                planned=Spending.of([], adjacency=adjacency),
                epsilon_of=lambda _: 0.0,
                noise=Streams.seeded(0).noise,
            )
            values[adjacency] = door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert torch.allclose(values[Adjacency.REPLACE_ONE], 2 * values[Adjacency.ADD_REMOVE])
