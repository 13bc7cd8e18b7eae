"""What a certificate may claim of a run that was stopped before its plan was fulfilled."""

from dataclasses import replace

import pytest

from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme
from dpsrm.core.isolation import Isolation
from dpsrm.runs.certificate import prove
from dpsrm.runs.ledger import Closing, Header, Ledger, read_ledger

EVENT = GaussianRelease(noise_multiplier=2.0, sampling=Sampling(scheme=Scheme.POISSON, population=100, batch=10))
HEADER = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=9.0, delta=1e-5, accountant="rdp", private_randomness=True)


def closing(*planned):
    return Closing(
        released=3, unit="one record", isolation=Isolation.ALONE, engine="ghost", files={}, planned=tuple(planned)
    )


@pytest.fixture
def facts(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl", HEADER) as ledger:
        ledger.charge(EVENT, 4)
    return read_ledger(tmp_path / "ledger.jsonl")


def test_a_stopped_run_costs_its_whole_plan(facts):
    whole = prove(facts, closing(Charge(EVENT, 40))).epsilon
    assert whole > prove(facts, closing()).epsilon == prove(facts, closing(Charge(EVENT, 4))).epsilon


@pytest.mark.parametrize("count", [1, 3])
def test_charges_must_be_part_of_the_plan(facts, count):
    with pytest.raises(LedgerError, match="no part of the plan"):
        prove(facts, closing(Charge(EVENT, count)))


def test_the_plan_is_read_back_from_the_closing_line():
    planned = closing(Charge(EVENT, 40))
    assert Closing.from_json(planned.to_json()) == planned
    assert "planned" not in closing().to_json()
    with pytest.raises(LedgerError, match="malformed"):
        Closing.from_json({**planned.to_json(), "planned": [[{"kind": "gaussian"}, 3]]})
    with pytest.raises(LedgerError, match="malformed"):
        Closing.from_json({**planned.to_json(), "planned": [["x", -3]]})


def test_what_was_read_from_records_is_read_back_from_the_closing_line():
    """A closing line of before, without the word, is one that read nothing."""
    told = replace(closing(), read=("classes", "bounds"))
    assert Closing.from_json(told.to_json()) == told
    assert "read" not in closing().to_json()
    for wrong in (["the model"], 3, [["classes"]]):
        with pytest.raises(LedgerError, match="malformed"):
            Closing.from_json({**told.to_json(), "read": wrong})
