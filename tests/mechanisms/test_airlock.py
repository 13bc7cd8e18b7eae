"""The airlock: charge first, never more than the budget, never another noise than was charged."""

import math

import pytest
import torch

from dpsrm.core.errors import BudgetExceeded, InputError, LedgerError
from dpsrm.core.events import Adjacency, GaussianRelease, Sampling, Scheme, Spending, UnprotectedRelease
from dpsrm.core.secret import ClippedScores, ClippedSum, Streams
from dpsrm.mechanisms import Airlock, Selection
from dpsrm.runs.ledger import Header, Ledger, read_ledger

WOR = Sampling(scheme=Scheme.WOR, population=100, batch=10)
FULL = Sampling(scheme=Scheme.FULL, population=100, batch=100)
NOTHING = Spending.of([], adjacency=Adjacency.REPLACE_ONE)
EVENT = GaussianRelease(noise_multiplier=2.0, sampling=WOR)


def total(rows=10, bound=1.0):
    return ClippedSum(secret=torch.zeros(4, dtype=torch.float64), bound=bound, rows=rows)


def scores(rows=100, bound=1.0):
    return ClippedScores(secret=(3.0, 2.0, 5.0), bound=bound, rows=rows)


@pytest.fixture
def ledger(tmp_path):
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=10.0, delta=1e-5, accountant="count", private_randomness=True
    )
    with Ledger(tmp_path / "ledger.jsonl", header) as open_ledger:
        yield open_ledger


def airlock(ledger, planned=NOTHING, released=None):
    """An airlock whose accountant counts releases."""
    noise = Streams.seeded(0).noise
    return Airlock(ledger, planned=planned, epsilon_of=lambda s: float(s.releases), noise=noise, released=released)


def test_the_charge_is_on_disk_before_the_value_exists(ledger, monkeypatch):
    door = airlock(ledger)
    monkeypatch.setattr("dpsrm.mechanisms.airlock.gaussian_noise", lambda *_: pytest.fail("noise before charge"))
    monkeypatch.setattr(type(ledger), "charge", lambda *_: (_ for _ in ()).throw(LedgerError("disk full")))
    with pytest.raises(LedgerError):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert door.releases == 0


def test_what_is_charged_is_what_was_drawn_and_added(ledger):
    airlock(ledger).release(total(), sampling=WOR, noise_multiplier=2.0)
    assert read_ledger(ledger.path).spending == NOTHING.plus(EVENT, 1)


def test_the_release_that_would_overspend_is_not_made(ledger):
    door = airlock(ledger)
    for _ in range(10):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    with pytest.raises(BudgetExceeded, match="10 release"):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert door.releases == 10
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
        assert read_ledger(ledger.path).spending.releases >= made == door.releases


def test_without_noise_the_charge_says_so(tmp_path):
    header = Header(
        adjacency=Adjacency.REPLACE_ONE, epsilon=None, delta=None, accountant="none", private_randomness=True
    )
    with Ledger(tmp_path / "l", header) as open_ledger:
        airlock(open_ledger).release(total(), sampling=WOR, noise_multiplier=0.0)
    assert isinstance(read_ledger(tmp_path / "l").spending.charges[0].event, UnprotectedRelease)


@pytest.mark.parametrize("bound", [math.inf, math.nan, 0.0])
def test_a_release_with_noise_needs_a_finite_positive_sensitivity(ledger, bound):
    door, wrong = airlock(ledger), total()
    object.__setattr__(wrong, "bound", bound)
    with pytest.raises(InputError, match="sensitivity"):
        door.release(wrong, sampling=WOR, noise_multiplier=1.0)
    object.__setattr__(wrong, "rows", 100)
    with pytest.raises(InputError, match="sensitivity"):
        door.release_zcdp(wrong, sampling=FULL, rho=0.1)
    assert ledger.spending.releases == door.releases == 0


@pytest.mark.parametrize("rows", [0, 9, 11])
def test_the_sum_must_be_over_the_batch_that_is_charged(ledger, rows):
    door = airlock(ledger)
    with pytest.raises(InputError, match="batch"):
        door.release(total(rows=rows), sampling=WOR, noise_multiplier=1.0)
    with pytest.raises(InputError, match="batch"):
        door.release(total(rows=rows), sampling=WOR, noise_multiplier=0.0)
    with pytest.raises(InputError, match="batch"):
        door.release_zcdp(total(rows=rows), sampling=FULL, rho=0.1)
    with pytest.raises(InputError, match="batch"):
        door.select(scores(rows=rows), sampling=FULL, rho=0.1, selection=Selection.GUMBEL)
    assert ledger.spending.releases == door.releases == 0


@pytest.mark.parametrize("scheme", [Scheme.WOR, Scheme.POISSON])
@pytest.mark.parametrize("rho", [0.1, math.inf])
def test_a_zcdp_price_is_for_all_records_not_for_a_sample(ledger, scheme, rho):
    """Amplification by sampling has no zCDP form here, and a choice over a sample has no accountant at all."""
    door, sampling = airlock(ledger), Sampling(scheme=scheme, population=100, batch=10)
    with pytest.raises(InputError, match="all records"):
        door.select(scores(rows=10), sampling=sampling, rho=rho, selection=Selection.EXPONENTIAL)
    with pytest.raises(InputError, match="all records"):
        door.release_zcdp(total(), sampling=sampling, rho=rho)
    assert ledger.spending.releases == door.releases == 0


@pytest.mark.parametrize("bound", [math.inf, math.nan, 0.0])
def test_a_choice_needs_losses_with_a_finite_positive_clip(ledger, bound):
    door = airlock(ledger)
    for selection in Selection:
        with pytest.raises(InputError, match="clip of the losses"):
            door.select(scores(bound=bound), sampling=FULL, rho=0.1, selection=selection)
    assert ledger.spending.releases == door.releases == 0


def test_a_ledger_that_charges_less_than_was_released_is_refused(ledger):
    """A checkpoint knows of three releases, the ledger of two: it was cut off or exchanged."""
    ledger.charge(EVENT, 2)
    other = GaussianRelease(noise_multiplier=3.0, sampling=WOR)
    for made in (NOTHING.plus(EVENT, 3), NOTHING.plus(EVENT, 1).plus(other, 1)):
        with pytest.raises(LedgerError, match="less than was released"):
            airlock(ledger, released=made)
    assert airlock(ledger, released=NOTHING.plus(EVENT, 2)).releases == 2


def test_charges_that_were_not_used_are_used_up_before_new_ones_are_made(ledger):
    ledger.charge(EVENT, 3)
    door = airlock(ledger, released=NOTHING.plus(EVENT, 1))
    for _ in range(2):
        door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert ledger.spending.releases == 3
    door.release(total(), sampling=WOR, noise_multiplier=2.0)
    assert ledger.spending.releases == 4


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
