"""What one record can change, stated by the types that carry sums and scores."""

import pytest

from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.core.secret import ClippedScores, ClippedSum


def test_spread_of_scores():
    """A replaced record may lower one score by the bound and raise another by it."""
    scores = ClippedScores(secret=(1.0, 2.0), bound=1.5, rows=4)
    assert scores.spread(Adjacency.REPLACE_ONE) == 3.0
    assert scores.spread(Adjacency.ADD_REMOVE) == 1.5
    assert "secret" not in repr(scores)


@pytest.mark.parametrize("bound", [-1.0, float("nan")])
def test_a_bound_is_a_bound(bound):
    with pytest.raises(InputError, match="bound"):
        ClippedSum(secret=None, bound=bound, rows=1)


def test_an_unknown_adjacency_has_no_sensitivity():
    with pytest.raises(AssertionError):
        ClippedSum(secret=None, bound=1.0, rows=1).sensitivity("zero-out")
    with pytest.raises(AssertionError):
        ClippedScores(secret=(), bound=1.0, rows=1).spread("zero-out")
