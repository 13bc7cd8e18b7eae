"""Guards of a reopened ledger."""

from dataclasses import replace

import pytest

from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Adjacency, PureRelease
from dpsrm.runs.ledger import Header, Ledger

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
