"""scikit-learn's own checks. Exceptions would stand in `EXPECTED`, with their reasons."""

import logging

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpsrm.sklearn import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
)

EXPECTED: dict[str, str] = {}
"""Checks that may fail: none. Two skip themselves: check_pipeline_consistency (fits are random without a seed) and
check_array_api_input (off unless SCIPY_ARRAY_API is set)."""

QUICK = {"steps": 3, "accountant": "rdp"}
ESTIMATORS = [
    PrivateLogisticRegression(**QUICK),
    PrivateLinearRegression(**QUICK),
    PrivateMLPClassifier(**QUICK, hidden=(4,)),
    PrivateMLPRegressor(**QUICK, hidden=(4,)),
]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """The checks have a few records each: nothing is expected of them."""
    caplog.set_level(logging.ERROR, logger="dpsrm")


@pytest.mark.filterwarnings("ignore::dpsrm.sklearn.PrivacyLeakWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
