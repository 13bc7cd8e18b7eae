"""`paper`: its closed form, its conditions, and the answer "no guarantee"."""

from __future__ import annotations

import json
import math

import pytest

from dpsrm.accounting import attack_epsilon
from dpsrm.accounting.calibrate import ACCOUNTANTS
from dpsrm.accounting.paper import conditions, largest_order
from dpsrm.core.events import (
    Adjacency,
    Charge,
    GaussianRelease,
    PureRelease,
    Sampling,
    Scheme,
    Spending,
    UnprotectedRelease,
    ZcdpRelease,
)

PAPER = ACCOUNTANTS["paper"]


def test_the_closed_form_at_the_best_allowed_order(spend) -> None:
    rate, noise, steps = 64 / 50_000, 0.9901, 6800
    allowed = [a for a in range(2, 50) if a - 1 <= 2 / 3 * noise**2 * math.log(1 / (rate * a * (1 + noise**2)))]
    wanted = min(3.5 * rate**2 * a / noise**2 * steps + math.log(1e5) / (a - 1) for a in allowed)
    found = PAPER.epsilon(spend(50_000, 64, steps, noise), 1e-5)
    assert found.epsilon == pytest.approx(wanted, rel=1e-12)
    assert largest_order(spend(50_000, 64, steps, noise)) == max(allowed)
    assert PAPER.delta(spend(50_000, 64, steps, noise), wanted).delta == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize(
    ("batch", "noise", "name"), [(512, 0.5, "noise"), (512, 0.82, "noise"), (2000, 6.0, "rate"), (15_000, 1.0, "order")]
)
def test_no_guarantee_names_the_condition_that_fails(spend, batch, noise, name) -> None:
    found = PAPER.epsilon(spend(60_000, batch, 100, noise), 1e-5)
    assert not found.holds
    assert found.epsilon == math.inf
    assert name in [condition.name for condition in found.conditions if not condition.holds]
    assert found.reason.startswith("Lemma 1 does not apply: ")
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body["epsilon"] is None
    assert body["reason"] == found.reason
    assert PAPER.delta(spend(60_000, batch, 100, noise), 1.0).to_json()["delta"] is None


def test_ignoring_the_conditions_is_unsound(spend) -> None:
    """CIFAR, b = 32, "ε = 2": the noise of the bare formula, and an attack that reaches ε ≥ 12 on it."""
    rate, steps = 32 / 50_000, 6800
    noise = min(math.sqrt(3.5 * rate**2 * a * steps / (2 - math.log(1e5) / (a - 1))) for a in range(8, 60))
    assert noise**2 < 0.7
    assert not PAPER.epsilon(spend(50_000, 32, steps, noise), 1e-5).holds
    assert attack_epsilon(spend(50_000, 32, steps, noise), 1e-5) > 12


def test_conditions_are_not_monotone_in_the_noise(spend) -> None:
    answers = [PAPER.epsilon(spend(60_000, 512, 1172, s), 1e-5).holds for s in (0.8, 3.5, 8.0)]
    assert answers == [False, True, False]


def test_a_heterogeneous_sequence_uses_one_order_for_all(spend) -> None:
    first, rest = spend(50_000, 1024, 1, 2.0), spend(50_000, 64, 1000, 2.0)
    both = Spending.of([*first.charges, *rest.charges], adjacency=Adjacency.REPLACE_ONE)
    assert largest_order(both) == min(largest_order(first), largest_order(rest)) < largest_order(rest)
    rates, order = (1024 / 50_000, 64 / 50_000), largest_order(both)
    bounds = [
        3.5 * a / 4 * (rates[0] ** 2 + 1000 * rates[1] ** 2) + math.log(1e5) / (a - 1) for a in range(2, order + 1)
    ]
    assert PAPER.epsilon(both, 1e-5).epsilon == pytest.approx(min(bounds), rel=1e-12)
    assert len(PAPER.epsilon(both, 1e-5).conditions) == 6


def test_full_batches_and_other_releases_have_no_conditions() -> None:
    full = Sampling(scheme=Scheme.FULL, population=100, batch=100)
    charges = [
        Charge(GaussianRelease(noise_multiplier=30.0, sampling=full), 10),
        Charge(PureRelease(epsilon=0.1), 2),
        Charge(ZcdpRelease(rho=0.01), 1),
    ]
    found = PAPER.epsilon(Spending.of(charges, adjacency=Adjacency.REPLACE_ONE), 1e-5)
    assert found.holds
    assert found.conditions == ()
    assert (
        found.epsilon >= ACCOUNTANTS["pld"].epsilon(Spending.of(charges, adjacency=Adjacency.REPLACE_ONE), 1e-5).epsilon
    )


def test_something_unprotected_is_infinite_not_undecided(spend) -> None:
    spent = spend(60_000, 512, 1172, 3.6).plus(UnprotectedRelease(what="exact mean"), 1)
    assert PAPER.epsilon(spent, 1e-5).to_json()["epsilon"] == "inf"
    assert "exact mean" in PAPER.epsilon(spent, 1e-5).reason


def test_conditions_at_an_order() -> None:
    release = GaussianRelease(noise_multiplier=2.0, sampling=Sampling(scheme=Scheme.WOR, population=1000, batch=10))
    assert [c.holds for c in conditions(release, 2)] == [True, True, True]
    assert [c.holds for c in conditions(release, 19)] == [True, True, False]
    assert [c.holds for c in conditions(release, 30)] == [True, False, False]
