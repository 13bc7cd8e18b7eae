"""A run that chooses its releases as it goes is stopped by a zCDP filter fixed before, and certified as the filter."""

import math

import pytest
import torch

from conftest import make_problem
from dpsrm.accounting.calibrate import accountant
from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Charge, GaussianRelease, PureRelease, Sampling, Scheme, Spending, ZcdpRelease
from dpsrm.core.filter import fits_filter, zcdp_sum
from dpsrm.data import Records
from dpsrm.methods import Agd, Schedule, Sgd
from dpsrm.runs import verify
from dpsrm.runs.certificate import prove
from dpsrm.runs.ledger import Ledger, read_ledger
from dpsrm.training import Privacy, Settings, Training, make_plan, train

PRIVACY = Privacy(epsilon=1.0, delta=1e-5)


def plan(privacy=PRIVACY, method=None):
    return make_plan(method or Agd(), Schedule(steps=5, batch=60, first_batch=60), n=60, privacy=privacy)


def charges(*prices):
    return Spending.of([Charge(ZcdpRelease(rho=rho), 1) for rho in prices], adjacency=PRIVACY.adjacency)


@pytest.mark.parametrize("name", ["pld", "rdp"])
@pytest.mark.parametrize("noise", [None, 30.0])
def test_the_filter_is_fixed_beforehand_and_is_the_budget(name, noise):
    """Whether the prices follow from the budget, or leave most of it for purchases."""
    made = plan(Privacy(epsilon=1.0, delta=1e-5, accountant=name, noise_multiplier=noise))
    cost = accountant(name).epsilon(charges(made.filter_rho), 1e-5).epsilon
    assert made.guarantee.epsilon == cost <= 1.0
    assert accountant(name).epsilon(charges(made.filter_rho * 1.01), 1e-5).epsilon > 1.0
    assert fits_filter(made.spending, made.filter_rho)
    assert made.reserved == charges(made.filter_rho)


def test_the_sum_of_rho_alone_decides():
    """However the sum is divided; not what an accountant would say of the sequence."""
    made = plan()
    limit = made.filter_rho
    for prices in ((limit,), (limit / 2, limit / 4, limit / 4), (limit * 2.0**-k for k in range(1, 30))):
        assert made.epsilon_of(charges(*prices)) == made.guarantee.epsilon <= 1.0
    for prices in ((math.nextafter(limit, 1),), (limit / 2, limit / 2, 1e-15), (0.9 * limit, 0.2 * limit)):
        assert made.epsilon_of(charges(*prices)) > 1.0
    assert made.epsilon_of(charges()) == 0.0


def test_what_has_no_zcdp_price_is_never_let_through():
    """A sampled release beside zCDP ones has no filter at all orders at once."""
    tiny = GaussianRelease(noise_multiplier=1e6, sampling=Sampling(scheme=Scheme.POISSON, population=10**6, batch=1))
    for event in (tiny, PureRelease(epsilon=1e-9)):
        assert plan().epsilon_of(charges(1e-9).plus(event, 1)) == math.inf


def test_a_planned_method_has_no_filter():
    assert plan(method=Sgd()).filter_rho is None
    assert plan(method=Sgd()).header(private_randomness=True).filter_rho is None


def nothing_to_learn(out, *callbacks):
    """On such data purchases are made, and the run ends before its steps."""
    generator = torch.Generator().manual_seed(0)
    data = Records(torch.randn(60, 5, generator=generator), torch.randint(2, (60,), generator=generator))
    objective, _ = make_problem("logistic")
    settings = Settings(privacy=PRIVACY, method=Agd(candidates=5, growth=0.5), training=Training(steps=20), seed=2)
    return train(objective.module, objective.loss, data, settings, out=out, callbacks=callbacks)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return nothing_to_learn(tmp_path_factory.mktemp("filter") / "run")


def test_a_run_that_bought_accuracy_may_be_stopped_early(stopped, tmp_path):
    """What it chose is part of no plan: the filter is its guarantee, wherever it stops."""
    run = nothing_to_learn(tmp_path / "run", lambda at: at.stop() if len(at.spending.charges) > 1 else None)
    facts = read_ledger(run.folder.ledger)
    assert len(facts.spending.charges) > 1
    assert facts.closing.planned == ()
    assert verify(run.folder.path).ok
    assert run.epsilon == stopped.epsilon


def test_a_run_is_certified_as_its_filter_not_as_what_it_happened_to_spend(stopped):
    """Where it stopped depends on the records; the smaller figure was no guarantee."""
    facts = read_ledger(stopped.folder.ledger)
    happened = accountant("pld").epsilon(facts.spending, 1e-5).epsilon
    assert fits_filter(facts.spending, facts.header.filter_rho)
    assert stopped.epsilon == stopped.plan.guarantee.epsilon > happened
    assert verify(stopped.folder.path).guarantee.epsilon == stopped.epsilon
    assert "chosen as the run went" in stopped.folder.certificate.read_text()


def test_charges_above_the_filter_prove_nothing(stopped, tmp_path):
    facts = read_ledger(stopped.folder.ledger)
    with Ledger(tmp_path / "ledger.jsonl", facts.header) as ledger:
        for charge in facts.spending.charges:
            ledger.charge(charge.event, charge.count)
        rest = facts.header.filter_rho - float(zcdp_sum(facts.spending))
        ledger.charge(ZcdpRelease(rho=1.01 * rest), 1)
    with pytest.raises(LedgerError, match="exceed the zCDP filter"):
        prove(read_ledger(tmp_path / "ledger.jsonl"), None)
    assert "filter" in verify(tmp_path).problems[0]
