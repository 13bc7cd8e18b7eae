"""A private search: its price, what it scores on, and that single tries do not come out."""

import logging
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from dpsrm.accounting.rdp import rdp_curve
from dpsrm.accounting.selection import runs_to_gamma, select_epsilon
from dpsrm.core.errors import BudgetExceeded, InputError
from dpsrm.core.events import Charge, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.core.secret import Streams
from dpsrm.estimators import base, search, selection
from dpsrm.estimators.leaks import PrivacyLeakWarning
from dpsrm.estimators.scores import noisy_score
from dpsrm.estimators.selection import ETA, TryPlan, plan_tries
from dpsrm.mechanisms import airlock
from dpsrm.methods import Agd
from dpsrm.sklearn import PrivateLinearRegression, PrivateLogisticRegression, PrivateSearchCV
from dpsrm.training import Training

X = np.random.default_rng(0).uniform(-1, 1, size=(800, 2))
Y = (X[:, 0] > 0).astype(int)
BASE = {"classes": [0, 1], "bounds": (-1, 1)}
GRID = {"learning_rate": [1e-6, 4.0], "steps": [20]}


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="dpsrm")


def made(**parameters):
    return PrivateLogisticRegression(**BASE, accountant="rdp", **parameters)


def plan(tries=4.0, epsilon=2.0):
    return plan_tries([made(steps=10), made(steps=20)], n=640, epsilon=epsilon, delta=1e-5, tries=tries)


def test_the_price_is_that_of_the_dearest_try_and_within_the_budget():
    found = plan()
    assert found.epsilon < found.total <= 2.0
    assert found.total > 1.8, "the budget is used"
    gamma = runs_to_gamma(4.0, eta=ETA)
    for steps in (10, 20):
        fitted = made(steps=steps, epsilon=found.epsilon).fit(X[:640], Y[:640])
        spending = fitted.run_.plan.spending
        assert found.covers(spending)
        assert select_epsilon(spending, 1e-5, eta=ETA, gamma=gamma) <= found.total * (1 + 1e-9)
    assert plan(tries=40.0).epsilon < found.epsilon, "more tries, more noise in each"


def test_a_score_costs_no_more_than_a_training():
    """A Gaussian release of a sum that a record moves by at most 1."""
    found = plan()
    everything = Sampling(scheme=Scheme.FULL, population=160, batch=160)
    release = GaussianRelease(noise_multiplier=found.score_noise, sampling=everything)
    spending = Spending.of([Charge(release, 1)], adjacency=made().asked(640, classes=2)[0].privacy.adjacency)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(rdp_curve(spending).values, found.curve.values, strict=True))
    less = GaussianRelease(noise_multiplier=found.score_noise * 0.9, sampling=everything)
    assert not found.covers(Spending.of([Charge(less, 1)], adjacency=spending.adjacency))


def test_a_search_finds_what_learns_and_states_the_whole_price():
    found = PrivateSearchCV(made(), GRID, epsilon=8.0, tries=12).fit(X, Y)
    assert found.score(X, Y) > 0.8
    assert found.best_params_["learning_rate"] == 4.0
    assert found.epsilon_spent_ == found.best_estimator_.epsilon_spent_ == found.best_estimator_.run_.epsilon <= 8.0
    assert not found.best_estimator_.run_.folder.path.exists()
    assert found.predict_proba(X).shape == (800, 2)


QUICK = {"param_grid": {"learning_rate": [1.0], "steps": [2]}, "epsilon": 8.0}


def test_the_number_of_tries_stays_secret():
    """The theorem needs that, and a fitted search may be pickled and published."""
    before = vars(made())
    for tries in (1.1, 30.0):
        found = PrivateSearchCV(made(), **QUICK, tries=tries).fit(X, Y)
        assert vars(pickle.loads(pickle.dumps(found.estimator))) == before, "nothing was counted"


@pytest.mark.parametrize(
    ("n", "settings", "bounds", "said"),
    [
        (120, {"epsilon": 0.5}, (-1, 1), {"n times epsilon": 1}),
        (120, {"epsilon": 8.0, "delta": 0.02}, (-1, 1), {"is not below 1/n": 2}),
        (800, {"epsilon": 8.0}, "data", {"bounds were read": 1}),
    ],
)
def test_neither_log_lines_nor_warnings_tell_the_number_of_tries(n, settings, bounds, said, caplog, monkeypatch):
    """What every try would say is said once, whatever their number."""
    caplog.set_level(logging.WARNING, logger="dpsrm")
    tries, real = [], search.noisy_score
    monkeypatch.setattr(search, "noisy_score", lambda *given, **named: tries.append(1) or real(*given, **named))
    grid = {"steps": [2], "bounds": [(-1, 1), bounds]}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(5):
            PrivateSearchCV(made(), grid, **settings, tries=4).fit(X[:n], Y[:n])
    words = [*(str(each.message) for each in told), *(each.getMessage() for each in caplog.records)]
    assert len(tries) > 5
    for word, times in said.items():
        assert sum(word in line for line in words) == 5 * times
    assert len(words) == 5 * sum(said.values())
    assert all(each.filename == __file__ for each in told), "a warning names the line that called fit"


MIXED = [
    (made(), [0, 1], ["0", 1.5, None, True]),
    (PrivateLogisticRegression(classes=[2**53, 2**53 + 1], bounds=(-1, 1)), [2**53, 2**53 + 1], [2.0**53, "1"]),
    (PrivateLinearRegression(target_range=(0, 1), bounds=(-1, 1)), [0.5, 0.25], ["0.5", 1, None]),
]


@pytest.mark.parametrize(("estimator", "values", "others"), MIXED)
def test_a_target_of_another_type_is_refused_whichever_part_it_falls_in(estimator, values, others, monkeypatch):
    """A list has no type but its elements': one record's would decide how all labels are read."""
    monkeypatch.setattr(PrivateSearchCV, "_parts", lambda *_: pytest.fail("a record got a part"))
    for other in others:
        for at in (0, 57):
            y = values * 400
            y[at] = other
            for given in (y, tuple(y), np.array(y, dtype=object)):
                with pytest.raises(InputError, match="values of one type"):
                    PrivateSearchCV(estimator, {"steps": [2]}, epsilon=8.0).fit(X, given)


def test_a_label_that_is_no_class_is_refused_before_any_try(monkeypatch):
    """Among the records that tries are scored on, it would only be a miss."""
    monkeypatch.setattr(PrivateSearchCV, "_try", lambda *_, **__: pytest.fail("a try was made"))
    for at in range(0, 800, 100):
        y = Y.copy()
        y[at] = 7
        with pytest.raises(InputError, match="every label must be one of classes"):
            PrivateSearchCV(made(), {"steps": [2]}, epsilon=8.0).fit(X, y)


def test_an_adaptive_method_would_be_charged_for_its_whole_filter(monkeypatch):
    """Estimators refuse it; were it let in, what it predicts would be less than a try may release."""

    def adaptive(settings, *_):
        privacy = replace(settings.privacy, noise_multiplier=30.0)  # its first prices are low, and may rise
        training = Training(steps=3, learning_rate=4.0, output="last")
        return replace(settings, method=Agd(), training=training, privacy=privacy)

    for module in (base, selection):
        monkeypatch.setattr(module, "choose", adaptive)
    plans, fit = [], PrivateLogisticRegression.fit
    monkeypatch.setattr(
        PrivateLogisticRegression, "fit", lambda *given: plans.append(fit(*given).run_.plan) or given[0]
    )
    found = PrivateSearchCV(made(), {"penalty": [0.0]}, epsilon=4.0, tries=2).fit(X, Y)
    gamma = runs_to_gamma(2.0, eta=ETA)
    price = select_epsilon(plans[0].reserved, 1e-5, eta=ETA, gamma=gamma)
    assert price <= found.epsilon_spent_ * (1 + 1e-9)
    assert select_epsilon(plans[0].spending, 1e-5, eta=ETA, gamma=gamma) < price
    monkeypatch.setattr(selection, "make_plan", lambda *given, **named: replace(plans[0], filter_rho=None))
    with pytest.raises(BudgetExceeded, match="may spend more"):
        PrivateSearchCV(made(), {"penalty": [0.0]}, epsilon=4.0, tries=2).fit(X, Y)


def test_a_second_search_says_that_it_costs_again():
    search = PrivateSearchCV(made(), **QUICK, tries=1.1).fit(X, Y)
    with pytest.warns(PrivacyLeakWarning, match="not the only fit"):
        search.fit(X, Y)
    with pytest.warns(PrivacyLeakWarning, match="not the only fit") as told:
        cross_val_score(clone(search), X, Y, cv=3)
    assert len(told) == 2


def test_tries_train_and_are_scored_on_different_records(monkeypatch):
    seen = {"train": [], "score": []}
    fit, merits = PrivateLogisticRegression.fit, PrivateLogisticRegression.merits

    def spied_fit(self, inputs, labels):
        seen["train"].append(inputs[:, 1])
        return fit(self, inputs, labels)

    def spied_merits(self, inputs, labels):
        seen["score"].append(inputs[:, 1])
        found = merits(self, inputs, labels)
        assert set(found) <= {0.0, 1.0}
        return found

    monkeypatch.setattr(PrivateLogisticRegression, "fit", spied_fit)
    monkeypatch.setattr(PrivateLogisticRegression, "merits", spied_merits)
    PrivateSearchCV(made(), GRID, epsilon=4.0, tries=3).fit(X, Y)
    for train, score in zip(seen["train"], seen["score"], strict=True):
        assert len(train) == 640
        assert len(score) == 160
        assert not set(train) & set(score)


def test_scores_are_noisy(monkeypatch):
    """With predictions fixed, scores still spread by the planned noise."""
    monkeypatch.setattr(PrivateLogisticRegression, "merits", lambda self, inputs, labels: np.zeros(len(labels)))
    noise = []

    def spied(std, size, stream):
        noise.append(std)
        return real(std, size, stream)

    real = airlock.gaussian_noise
    monkeypatch.setattr(airlock, "gaussian_noise", lambda std, size, stream: spied(std, size, stream))
    found = PrivateSearchCV(made(), GRID, epsilon=2.0, tries=3).fit(X, Y)
    assert found.best_score_ != 0
    planned = plan_tries([made(**GRID_ONE)], n=640, epsilon=2.0, delta=1e-5, tries=3).score_noise
    assert planned in noise, "std of a sum that a record moves by at most 1"


GRID_ONE = {"learning_rate": 4.0, "steps": 20}


def test_a_try_that_costs_more_than_planned_is_refused(monkeypatch):
    cheap = plan()
    curve = type(cheap.curve)(orders=cheap.curve.orders, values=tuple(v / 2 for v in cheap.curve.values))
    wrong = TryPlan(epsilon=cheap.epsilon, curve=curve, score_noise=1.0, total=cheap.total)
    monkeypatch.setattr(search, "plan_tries", lambda *_, **__: wrong)
    with pytest.raises(BudgetExceeded, match="dearest"):
        PrivateSearchCV(made(), {"steps": [20]}, epsilon=2.0, tries=3).fit(X, Y)


def test_numbers_are_searched_too():
    model = PrivateLinearRegression(target_range=(-1, 1), bounds=(-1, 1))
    found = PrivateSearchCV(model, {"steps": [10, 20]}, epsilon=8.0, tries=3).fit(X, X[:, 0])
    assert 0.5 < found.best_score_ < 1.2


@pytest.mark.parametrize(
    ("estimator", "grid", "word"),
    [
        (PrivateLogisticRegression(), GRID, "classes named"),
        (PrivateLinearRegression(), GRID, "range"),
        (made(out="runs/x"), GRID, "no out"),
        (made(budget="b"), GRID, "no budget"),
        (made(), {"epsilon": [1, 2]}, "not searched"),
        (made(), {"classes": [[0, 1], [0, 1, 2]]}, "not searched"),
        (made(method="agd"), GRID, "updates are counted; got method='agd'; give another method"),
        (made(method=Agd()), GRID, "updates are counted"),
        ("a text", GRID, "private estimator"),
    ],
)
def test_what_cannot_be_searched_is_said(estimator, grid, word):
    with pytest.raises(InputError, match=word):
        PrivateSearchCV(estimator, grid).fit(X, Y)


def test_merits_outside_their_bounds_are_never_released():
    for wrong in ([1.5], [-0.1], []):
        with pytest.raises(InputError, match="merits"):
            noisy_score(np.array(wrong), Streams.seeded(0), noise_multiplier=1.0, delta=1e-5)


def test_a_pipeline_ends_in_a_search_and_is_not_searched():
    base, grid = PrivateLogisticRegression(classes=[0, 1], bounds="record"), {"learning_rate": [4.0], "steps": [20]}
    wrong = PrivateSearchCV(make_pipeline(Normalizer(), base), grid)
    with pytest.raises(InputError, match=r"make_pipeline\(Normalizer\(\), PrivateSearchCV"):
        wrong.fit(X, Y)
    found = make_pipeline(Normalizer(), PrivateSearchCV(base, grid, epsilon=8.0, tries=1.5)).fit(X, Y)
    assert found.score(X, Y) > 0.8
    assert found[-1].epsilon_spent_ <= 8
