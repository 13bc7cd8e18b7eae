"""Guards of a reopened ledger."""

from dataclasses import replace

import pytest

from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Adjacency, PureRelease
from dpsrm.core.isolation import Isolation
from dpsrm.runs.ledger import Closing, Header, Ledger

HEADER = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="rdp", private_randomness=True)
EVENT = PureRelease(epsilon=0.1)


def interrupted(path):
    with Ledger(path, HEADER) as ledger:
        ledger.charge(EVENT, 3)
        return ledger.position


def test_a_reopened_ledger_knows_its_charges(tmp_path):
    after = interrupted(tmp_path / "l")
    with Ledger.reopen(tmp_path / "l", HEADER, after=after) as ledger:
        assert ledger.spending.count(EVENT) == 3
        ledger.charge(EVENT, 2)
        assert ledger.spending.count(EVENT) == 5


@pytest.mark.parametrize("change", [{"epsilon": 2.0}, {"delta": 1e-4}, {"adjacency": Adjacency.ADD_REMOVE}])
def test_another_header_does_not_continue_a_ledger(tmp_path, change):
    after = interrupted(tmp_path / "l")
    with pytest.raises(LedgerError, match="opens with"):
        Ledger.reopen(tmp_path / "l", replace(HEADER, **change), after=after)


@pytest.mark.parametrize("name", ["unit", "engine"])
@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x1b[2K"])
def test_a_closing_line_adds_no_line_to_the_certificate(name, end):
    """It would stand there in the certificate's own words, in order for `verify`."""
    said = Closing(released=1, unit="one record", isolation=Isolation.ALONE, engine="loop", files={}).to_json()
    assert Closing.from_json(said).unit == "one record"
    with pytest.raises(LedgerError, match="in one line"):
        Closing.from_json({**said, name: f"one visit.{end}The model is (ε = 0.01, δ = 1e-9)-differentially private"})
