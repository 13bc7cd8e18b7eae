"""Bad input is a clear error, infinity is reported as such, and the package stays light."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass

import pytest

from dpsrm.accounting import Guarantee, RdpCurve, attack_epsilon
from dpsrm.accounting.calibrate import ACCOUNTANTS, accountant
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, PureRelease, Spending, UnprotectedRelease, ZcdpRelease

NAMES = list(ACCOUNTANTS)


def test_the_four_accountants_and_the_error_for_a_fifth() -> None:
    assert NAMES == ["pld", "rdp", "rdp9", "paper"]
    assert all(accountant(name).name == name for name in NAMES)
    with pytest.raises(InputError, match="choose one of pld, rdp, rdp9, paper"):
        accountant("gdp")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf, 2.0])
def test_delta_must_be_a_probability(spend, name, delta) -> None:
    with pytest.raises(InputError, match="delta must lie strictly between 0 and 1"):
        ACCOUNTANTS[name].epsilon(spend(60_000, 512, 10, 3.5), delta)


def test_pld_refuses_a_tiny_delta_and_rdp_does_not(spend) -> None:
    spent = spend(60_000, 512, 10, 3.5)
    with pytest.raises(InputError, match=r"at least 1e-09 .* use --accountant rdp"):
        ACCOUNTANTS["pld"].epsilon(spent, 9e-10)
    with pytest.raises(InputError, match="at least 1e-09"):
        attack_epsilon(spent, 9e-10)
    assert ACCOUNTANTS["pld"].epsilon(spent, 1e-9).epsilon < ACCOUNTANTS["rdp"].epsilon(spent, 1e-12).epsilon < math.inf


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
def test_epsilon_must_be_finite_and_not_negative(spend, name, epsilon) -> None:
    with pytest.raises(InputError, match="epsilon must be finite"):
        ACCOUNTANTS[name].delta(spend(60_000, 512, 10, 3.5), epsilon)


@pytest.mark.parametrize("name", ["pld", "rdp"])
def test_wor_under_add_remove_has_no_accountant(spend, name) -> None:
    with pytest.raises(
        InputError, match=r"wor sampling under add-remove .* --adjacency replace-one or --sampling poisson"
    ):
        ACCOUNTANTS[name].epsilon(spend(1000, 10, 5, 1.0, "wor", "add-remove"), 1e-5)


@pytest.mark.parametrize("name", ["rdp9", "paper"])
def test_the_papers_accountants_are_for_wor_under_replace_one(spend, name) -> None:
    with pytest.raises(InputError, match="without replacement only"):
        ACCOUNTANTS[name].epsilon(spend(1000, 10, 5, 1.0, "poisson"), 1e-5)
    with pytest.raises(InputError, match="replace-one adjacency only"):
        ACCOUNTANTS[name].epsilon(spend(1000, 10, 5, 1.0, "poisson", "add-remove"), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_an_unprotected_release_is_infinite(spend, name) -> None:
    spent = spend(60_000, 512, 10, 3.5).plus(UnprotectedRelease(what="class counts"), 1)
    found = ACCOUNTANTS[name].epsilon(spent, 1e-5)
    assert (found.epsilon, found.holds) == (math.inf, False)
    assert "class counts" in found.reason
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["epsilon"] == "inf"
    lost = ACCOUNTANTS[name].delta(spent, 1.0)
    assert (lost.delta, lost.holds) == (1.0, False)
    assert attack_epsilon(spent, 1e-5) == math.inf


@pytest.mark.parametrize("name", NAMES)
def test_nothing_released_costs_nothing(name) -> None:
    nothing = Spending.of([], adjacency=Adjacency.REPLACE_ONE)
    found = ACCOUNTANTS[name].epsilon(nothing, 1e-5)
    assert (found.epsilon, found.holds, found.reason) == (0.0, True, "")
    assert ACCOUNTANTS[name].delta(nothing, 0.0).delta == 0
    assert attack_epsilon(nothing, 1e-5) == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_release_is_a_clear_error(name) -> None:
    @dataclass(frozen=True)
    class Mystery:
        size: int = 3

    with pytest.raises(InputError, match=f"the {name} accountant does not know the release"):
        ACCOUNTANTS[name].epsilon(Spending.of([], adjacency=Adjacency.REPLACE_ONE).plus(Mystery(), 1), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_json_is_plain_and_complete(spend, name) -> None:
    found = ACCOUNTANTS[name].epsilon(spend(60_000, 512, 1172, 3.6), 1e-5)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body["epsilon"] == found.epsilon
    assert body["accountant"] == name
    assert body["adjacency"] == "replace-one"
    assert set(body) == set(Guarantee.__dataclass_fields__)


@pytest.mark.parametrize("noise", [0.01, 0.05, 100.0, 1e5])
@pytest.mark.parametrize("scheme", ["wor", "poisson"])
def test_extreme_noise_gives_an_answer_or_says_there_is_none(spend, noise, scheme) -> None:
    found = ACCOUNTANTS["pld"].epsilon(spend(1000, 100, 20, noise, scheme), 1e-5)
    assert found.holds == (found.epsilon < math.inf)
    assert bool(found.reason) != found.holds
    assert not math.isnan(found.epsilon)
    assert ACCOUNTANTS["pld"].epsilon(spend(1000, 100, 20, noise, scheme), 0.9).epsilon <= found.epsilon


@pytest.mark.parametrize("scheme", ["wor", "poisson"])
def test_losses_too_large_to_count_are_infinite_and_never_dropped(spend, scheme) -> None:
    """s = 0.01 tells the record's presence with certainty, which happens with probability about q > δ."""
    found = ACCOUNTANTS["pld"].epsilon(spend(1000, 100, 1, 0.01, scheme), 1e-5)
    assert (found.epsilon, found.holds) == (math.inf, False)
    assert "500 per release" in found.reason
    assert ACCOUNTANTS["pld"].delta(spend(1000, 100, 1, 0.01, scheme), 400.0).delta == pytest.approx(0.1, rel=1e-3)


def test_an_epsilon_far_below_what_was_spent_has_no_delta(spend) -> None:
    found = ACCOUNTANTS["pld"].delta(spend(1000, 500, 5000, 0.5), 0.1)
    assert (found.delta, found.holds) == (1.0, False)
    assert found.reason == "no delta below 1 holds at this epsilon"


@pytest.mark.parametrize(
    ("orders", "values"), [((2.0,), (0.1, 0.2)), ((1.0,), (0.1,)), ((2.0,), (-0.1,)), ((2.0,), (math.nan,)), ((), ())]
)
def test_a_curve_refuses_what_is_none(orders, values) -> None:
    with pytest.raises(InputError):
        RdpCurve(orders=orders, values=values)


def test_mixtures_of_bounded_releases_alone() -> None:
    spent = Spending.of([], adjacency=Adjacency.ADD_REMOVE).plus(PureRelease(epsilon=0.5), 3)
    assert ACCOUNTANTS["pld"].epsilon(spent, 1e-9).epsilon <= 1.5
    assert ACCOUNTANTS["pld"].delta(spent, 1.5).delta == 0
    both = spent.plus(ZcdpRelease(rho=0.1), 1)
    assert 1.0 < ACCOUNTANTS["pld"].epsilon(both, 1e-5).epsilon < ACCOUNTANTS["rdp"].epsilon(both, 1e-5).epsilon * 1.02


def test_accounting_never_imports_torch_and_only_asks_dp_accounting_when_needed() -> None:
    code = "import sys, dpsrm.accounting; print('torch' in sys.modules, 'dp_accounting' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
