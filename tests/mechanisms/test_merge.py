"""The total of shares: their sum, their rows, and all that is needed to know that rounding stays within the bound."""

import pytest
import torch

from dpsrm.core.errors import InputError, RankFailed
from dpsrm.core.secret import ClippedSum, Diagnostics
from dpsrm.gradients.query import MOST_EXAMPLES, need_safe
from dpsrm.mechanisms.merge import merged


def share(values, *, rows=2, bound=1.5, additions=3, loss=0.5):
    seen = Diagnostics(loss=loss, clipped=(0.5,), nonfinite=1)
    secret = torch.tensor(values, dtype=torch.float64)
    return ClippedSum(secret=secret, bound=bound, rows=rows, diagnostics=seen, additions=additions)


def test_a_total_says_what_its_shares_say():
    total = merged([share([1.0, 2.0], rows=2, loss=1.0), share([0.5, 0.25], rows=6, loss=2.0)])
    assert total.rows == 8
    assert total.bound == 1.5
    assert total.diagnostics == Diagnostics(loss=1.75, clipped=(0.5,), nonfinite=2)
    assert total.additions == 8
    assert merged([only := share([1.0])]) is only


def test_shares_of_other_bounds_are_no_total():
    with pytest.raises(RankFailed, match="different bounds"):
        merged([share([1.0]), share([1.0], bound=2.0)])


def test_a_total_of_more_examples_than_the_margin_covers_is_refused():
    """Each share alone would pass."""
    half = share([1.0], rows=MOST_EXAMPLES - 1)
    need_safe(merged([half]))
    with pytest.raises(InputError, match="cannot be summed safely"):
        need_safe(merged([half, half]))
