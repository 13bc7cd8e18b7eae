"""Private estimators for scikit-learn: `pip install 'dpsrm[sklearn]'`, then change one import.

    from dpsrm.sklearn import PrivateLogisticRegression

See docs/sklearn.md.
"""

from dpsrm.estimators.budgets import new_budget
from dpsrm.estimators.classifiers import PrivateLogisticRegression, PrivateMLPClassifier
from dpsrm.estimators.leaks import PrivacyLeakWarning
from dpsrm.estimators.regressors import PrivateLinearRegression, PrivateMLPRegressor
from dpsrm.estimators.search import PrivateSearchCV

__all__ = [
    "PrivacyLeakWarning",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
    "PrivateMLPRegressor",
    "PrivateSearchCV",
    "new_budget",
]
