"""The four estimators: the promise, what is read from records, pandas and CSR, scikit-learn's tools, and the run."""

import html
import json
import logging
from collections import UserList

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from typer.testing import CliRunner

import dpsrm
from dpsrm.accounting.budget_file import read_budget
from dpsrm.cli.commands import app
from dpsrm.core.errors import BudgetExceeded, InputError
from dpsrm.core.files import read_toml
from dpsrm.data.columns import Number
from dpsrm.data.encoding import HashEncoder
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.runs import verify
from dpsrm.sklearn import (
    PrivacyLeakWarning,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateSearchCV,
    new_budget,
)

QUICK = {"steps": 4, "accountant": "rdp"}
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(600, 3))
LABELS = np.where(X[:, 0] > 0, "ill", "well")
NUMBERS = 10 * X[:, 0] + 5
FRAME = pd.DataFrame({"age": X[:, 0] * 40, "job": RNG.choice(["nurse", "cook"], 600), "seen": X[:, 1] > 0})


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="dpsrm")


def seeded(estimator):
    """A reproducible fit: its warning is expected."""
    return estimator.set_params(random_state=3)


def test_a_private_fit_keeps_its_promise_and_learns():
    model = PrivateLogisticRegression(epsilon=3.0, delta=1e-4, classes=["ill", "well"], bounds=(-1, 1)).fit(X, LABELS)
    assert 2.9 < model.epsilon_spent_ <= 3.0
    assert model.run_.plan.privacy.delta == 1e-4
    assert model.score(X, LABELS) > 0.85
    assert model.predict_proba(X).shape == (600, 2)
    assert dpsrm.verify(model.run_.folder.path).ok
    assert np.array_equal(model.classes_, ["ill", "well"])
    assert model.coef_.shape == (1, model.encoder_.features)


def test_numbers_stay_in_their_range_and_are_learned():
    model = PrivateLinearRegression(epsilon=3.0, bounds=(-1, 1), target_range=(-5, 15)).fit(X, NUMBERS)
    found = model.predict(X)
    assert model.score(X, NUMBERS) > 0.7
    assert -5 <= found.min() <= found.max() <= 15


@pytest.mark.parametrize(
    ("estimator", "y", "word"),
    [
        (PrivateLogisticRegression(**QUICK), LABELS, "classes were read"),
        (PrivateMLPClassifier(**QUICK, hidden=(3,)), LABELS, "classes were read"),
        (PrivateLinearRegression(**QUICK), NUMBERS, "range was read"),
        (PrivateMLPRegressor(**QUICK, hidden=(3,)), NUMBERS, "range was read"),
        (PrivateLogisticRegression(**QUICK, classes=["ill", "well"], bounds="data"), LABELS, "bounds were read"),
        (PrivateLogisticRegression(**QUICK, classes=["ill", "well"], random_state=1), LABELS, "noise predictable"),
    ],
)
def test_what_is_read_from_records_is_said(estimator, y, word):
    with pytest.warns(PrivacyLeakWarning, match=word):
        estimator.fit(X, y)
    facts = read_toml(estimator.run_.folder.config)["preprocessing"]
    said = [value for name, value in facts.items() if name in ("classes_from", "target_range_from", "public")]
    assert ("random_state" in str(estimator)) or any("read from the records" in text for text in said), said


@pytest.mark.parametrize(
    ("estimator", "y", "words", "instead"),
    [
        (PrivateLogisticRegression(**QUICK), LABELS, "the list of classes", "classes=[…]"),
        (PrivateLinearRegression(**QUICK), NUMBERS, "the range of targets", "target_range=(low, high)"),
        (PrivateLogisticRegression(**QUICK, classes=["ill", "well"], bounds="data"), LABELS, "bounds", "bounds=("),
    ],
)
@pytest.mark.filterwarnings("ignore::dpsrm.sklearn.PrivacyLeakWarning")
def test_every_public_page_says_what_was_read_from_records(estimator, y, words, instead):
    """The certificate said (ε, δ)-DP of everything in the folder, with the exact range of the targets in it."""
    folder = estimator.fit(X, y).run_.folder
    assert verify(folder.path).ok
    promise, exception = folder.certificate.read_text().split("\n\n")[1:3]
    assert promise.startswith("The model, and everything else in this folder outside `private/`, but for the ")
    for text in (
        exception,
        folder.statement.read_text(),
        folder.card.read_text(),
        html.unescape(folder.report.read_text()),
    ):
        assert words in promise
        assert words in text
        assert "Not protected, because read from the records" in text
        assert instead in text


def test_pages_without_an_exception_speak_of_none():
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"]).fit(X, LABELS)
    folder = model.run_.folder
    for path in (folder.certificate, folder.statement, folder.card, folder.report):
        assert "read from the records" not in path.read_text()
    assert b'"read"' not in folder.ledger.read_bytes()


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (PrivateLogisticRegression(**QUICK, classes=["ill", "well"]), LABELS),
        (PrivateLinearRegression(**QUICK, target_range=(-5, 15)), NUMBERS),
        (PrivateMLPClassifier(**QUICK, classes=["ill", "well"], hidden=(3,), bounds=(-1, 1)), LABELS),
        (PrivateMLPRegressor(**QUICK, target_range=(-5, 15), hidden=(3,), bounds="record"), NUMBERS),
    ],
)
def test_without_a_warning_features_depend_on_their_own_record_alone(estimator, y):
    """Warnings are errors here; another record changes neither the encoder nor this record's features."""
    estimator.fit(X, y)
    other = X.copy()
    other[0] = 1e6
    encoder = estimator.encoder_
    assert clone(estimator).fit(other, y).encoder_ == encoder


def test_labels_outside_the_classes_are_refused_and_so_is_one_class():
    with pytest.raises(InputError, match="one of classes"):
        PrivateLogisticRegression(classes=["ill", "dead"]).fit(X, LABELS)
    with pytest.raises(InputError, match="two classes"):
        PrivateLogisticRegression(classes=["ill"]).fit(X, LABELS)


KEPT = [
    (["ill", "well"], ["ill", "well", "ill"]),
    ([0, 1], [0, 1, 0]),
    ([0, 1], [0, np.int64(1), 0]),
    ([0, 1], np.array([False, True, False])),
    ([0, 1], [False, np.bool_(True), False]),
    ([0, 1], np.array([0, 1, 0], dtype=np.uint8)),
    ([0, 1], np.array([0.0, 1.0, 0.0])),
    (["a", "bcd"], np.array(["a", "bcd", "a"], dtype=object)),
    (["a", "bcd"], pd.Series(["a", "bcd", "a"])),
    (["a", "bcd"], pd.Series(["a", "bcd", "a"], dtype="category")),
    ([7, 9], pd.Series([7, 9, 7], dtype="category")),
    ([7, 9], pd.Series([7, 9, 7], dtype="Int64")),
    ([2**53, 2**53 + 1], [2**53, 2**53 + 1, 2**53]),
]


@pytest.mark.parametrize(("classes", "labels"), KEPT)
def test_labels_of_one_type_are_what_they_were(classes, labels):
    assert PrivateLogisticRegression(classes=classes)._targets(labels)[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("other", ["1", 1.5, 1.0, True, None, np.int32(1), float("nan")])
def test_one_records_type_does_not_change_what_others_are(other):
    """NumPy would make texts, floats or objects of everybody's numbers."""
    labels = [*[0, 1] * 299, 0, other]
    numbers = [*[np.float32(0.25), np.float32(0.5)] * 299, np.float32(0.25), other]
    for wrap in (list, tuple, UserList, lambda y: np.array(y, dtype=object), lambda y: pd.Series(y, dtype=object)):
        for estimator, y in (
            (PrivateLogisticRegression(classes=[0, 1], bounds=(-1, 1)), labels),
            (PrivateLinearRegression(target_range=(0, 1), bounds=(-1, 1)), numbers),
        ):
            with pytest.raises(InputError, match="y must hold values of one type"):
                estimator.fit(X, wrap(y))


def test_classes_and_labels_are_compared_exactly():
    """In floats, 2**53 + 1 is 2**53."""
    model = PrivateLogisticRegression(classes=[2.0**53, 7.0])
    assert model._targets(np.array([2**53, 7]))[0].tolist() == [1, 0]
    with pytest.raises(InputError, match=r"every label must be one of classes; got rows=\[0\]"):
        model._targets(np.array([2**53 + 1, 7]))
    with pytest.raises(InputError, match="classes must hold values of one type"):
        PrivateLogisticRegression(classes=[1, "1"])._targets([1, 1])


def test_merits_compare_exactly_and_each_record_by_itself():
    big = np.where(X[:, 0] > 0, 2**53, 2**53 + 1)
    model = PrivateLogisticRegression(classes=[2**53, 2**53 + 1], bounds=(-1, 1), **QUICK).fit(X, big)
    right = model.predict(X) == big
    assert 0 < right.sum() < 600
    assert (model.merits(X, big.tolist()) == right).all()
    assert not model.merits(X, np.full(600, 7)).any()
    assert not model.merits(X, np.full(600, 2.0**53 + 2)).any()
    for y in ([*big.tolist()[:-1], 0.5], [*big.tolist()[:-1], "1"]):
        with pytest.raises(InputError, match="values of one type"):
            model.merits(X, y)


@pytest.mark.parametrize("bounds", [(1, 0), (0,), "all", (0, np.inf), 3])
def test_bad_bounds_are_refused(bounds):
    with pytest.raises(InputError, match="bounds are"):
        PrivateLogisticRegression(classes=["ill", "well"], bounds=bounds).fit(X, LABELS)


def test_bounds_reach_the_encoder():
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"], bounds=([-1, -2, -3], 4)).fit(X, LABELS)
    assert isinstance(model.encoder_, SchemaEncoder)
    assert model.encoder_.schema.columns == tuple(Number(f"x{j}", -1.0 - j, 4.0, 9) for j in range(3))


def test_frames_go_through_the_encoder_by_name():
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"]).fit(FRAME, LABELS)
    assert model.encoder_ == HashEncoder(("age", "job", "seen"))
    assert list(model.feature_names_in_) == ["age", "job", "seen"]
    unseen = FRAME.assign(job="pilot")
    assert set(model.predict(unseen)) <= {"ill", "well"}
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(FRAME[["job", "age", "seen"]])


def test_a_schema_for_frames(tmp_path):
    schema = {"columns": {"age": {"kind": "number", "min": -40, "max": 40, "knots": 5}, "seen": {"kind": "boolean"}}}
    schema["columns"]["job"] = {"kind": "category", "values": ["nurse", "cook"]}
    model = PrivateLogisticRegression(epsilon=3.0, classes=["ill", "well"], schema=schema).fit(FRAME, LABELS)
    assert model.encoder_.features == 6 + 2 + 4
    assert model.score(FRAME, LABELS) > 0.8


def test_sparse_matrices_are_scaled_by_record_without_a_warning():
    matrix = scipy.sparse.csr_matrix(np.where(X > 0.2, X, 0))
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"]).fit(matrix, LABELS)
    assert model.encoder_.normalise
    assert np.array_equal(model.predict(matrix), model.predict(matrix.toarray()))


def command_line(*arguments):
    """What `dpsrm …` prints."""
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("kind", ["frame", "array"])
def test_estimator_run_folder_and_command_line_agree_bit_for_bit(tmp_path, kind):
    """`dpsrm predict` reads the published files alone; the estimator asks the module in memory."""
    data = FRAME if kind == "frame" else X
    hidden = {"hidden": (5,)}
    model = PrivateMLPClassifier(**QUICK, **hidden, classes=["ill", "well"], out=tmp_path / "run").fit(data, LABELS)
    loaded = dpsrm.load_run(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(data), model.predict_proba(data))
    assert np.array_equal(loaded.predict(data), model.predict(data))
    file = tmp_path / ("new.parquet" if kind == "frame" else "new.npz")
    data.to_parquet(file) if kind == "frame" else np.savez(file, X=data)
    found = json.loads(command_line("predict", tmp_path / "run", "--data", file, "--proba", "--json"))
    assert found["prediction"] == model.predict(data).tolist()
    assert np.array_equal([found["probability_ill"], found["probability_well"]], model.predict_proba(data).T)


@pytest.mark.parametrize("hidden", [(), [], (3, 2)])
def test_a_network_has_the_layers_it_was_asked_for(hidden):
    model = PrivateMLPClassifier(**QUICK, hidden=hidden, classes=["ill", "well"], bounds=(-1, 1)).fit(X, LABELS)
    layers = [layer for layer in model.run_.module if hasattr(layer, "out_features")]
    assert [layer.out_features for layer in layers] == [*hidden, 1]


def test_a_regression_agrees_with_its_run_folder(tmp_path):
    model = PrivateLinearRegression(**QUICK, target_range=(-5, 15), out=tmp_path / "run").fit(FRAME, NUMBERS)
    assert np.array_equal(dpsrm.load_run(tmp_path / "run").predict(FRAME), model.predict(FRAME))


def test_the_temporary_folder_goes_with_the_estimator():
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"]).fit(X, LABELS)
    folder = model.run_.folder.path
    assert folder.exists()
    del model
    assert not folder.exists()


def test_pipelines_clones_and_what_the_user_chooses():
    model = PrivateLogisticRegression(classes=["ill", "well"], bounds=(-1, 1), penalty=0.1, max_grad_norm=0.5, **QUICK)
    pipeline = make_pipeline(Normalizer(), clone(model)).fit(X, LABELS)
    run = pipeline[-1].run_
    assert run.plan.schedule.steps == 4 == pipeline[-1].n_iter_
    assert run.plan.method.max_grad_norm == 0.5
    assert read_toml(run.folder.config)["training"]["regulariser"] == 0.1
    assert pipeline.predict(X).shape == (600,)


def test_cross_validation_draws_on_a_shared_budget(tmp_path):
    path = new_budget(tmp_path / "all.budget", epsilon=4.0, delta=1e-5)
    model = PrivateLogisticRegression(**QUICK, epsilon=1.0, classes=["ill", "well"], budget=path)
    cross_val_score(model, X, LABELS, cv=KFold(3), error_score="raise")
    found = read_budget(tmp_path / "all.budget")
    assert len(found.reservations) == 3
    assert 1.0 < found.spent <= 4.0
    with pytest.raises(BudgetExceeded):
        cross_val_score(model.set_params(epsilon=2.0), X, LABELS, cv=KFold(3), error_score="raise")
    assert read_budget(tmp_path / "all.budget").spent <= 4.0


def test_a_budget_for_all_records_refuses_parts(tmp_path):
    command_line("budget", "init", tmp_path / "one.budget", "--epsilon", 4, "--delta", 1e-5)
    model = PrivateLogisticRegression(**QUICK, classes=["ill", "well"], budget=str(tmp_path / "one.budget"))
    model.fit(X, LABELS)
    with pytest.raises(InputError, match="same records"):
        clone(model).fit(X[:300], LABELS[:300])


def plain(**more):
    return PrivateLogisticRegression(classes=["ill", "well"], **QUICK, **more)


def test_fits_that_no_budget_adds_up_are_warned_of():
    model = plain().fit(X, LABELS)
    with pytest.warns(PrivacyLeakWarning, match="not the only fit.*PrivateSearchCV"):
        model.fit(X, LABELS)
    with pytest.warns(PrivacyLeakWarning, match="not the only fit"):
        GridSearchCV(plain(), {"learning_rate": [1.0, 2.0]}, cv=KFold(2)).fit(X, LABELS)


def test_single_fits_and_fits_with_a_budget_are_not_warned_of(tmp_path):
    """Warnings are errors here."""
    plain().fit(X, LABELS)
    clone(plain()).fit(X, LABELS)
    budget = new_budget(tmp_path / "all", epsilon=9.0, delta=1e-4)
    cross_val_score(plain(budget=budget), X, LABELS, cv=KFold(2))
    PrivateSearchCV(PrivateLogisticRegression(classes=["ill", "well"]), {"steps": [3, 4]}, tries=2).fit(X, LABELS)


def test_missing_numbers_of_an_array_are_refused_in_our_words():
    holes = np.where(X > 0.9, np.nan, X)
    with pytest.raises(InputError, match="give a DataFrame") as caught:
        plain().fit(holes, LABELS)
    assert "HistGradient" not in str(caught.value)
    plain().fit(pd.DataFrame(holes), LABELS)


def test_a_fit_that_fails_changes_nothing():
    """The model of before gave its answers the names of the classes of the fit that was refused."""
    model = PrivateLogisticRegression(classes=["ill", "well"], **QUICK).fit(X, LABELS)
    before, answers = dict(vars(model)), model.predict(X)
    model.set_params(epsilon=-1.0, classes=["no", "yes"])
    with pytest.warns(PrivacyLeakWarning), pytest.raises(InputError, match="epsilon"):
        model.fit(X[:, :1], np.where(LABELS == "ill", "no", "yes"))
    assert vars(model) == {**before, "epsilon": -1.0, "classes": ["no", "yes"]}
    assert np.array_equal(model.predict(X), answers)


def test_what_is_hidden_by_a_mask_is_refused():
    """scikit-learn reads what lies under a mask."""
    hidden = np.zeros(X.shape, dtype=bool)
    hidden[0, 0] = True
    model = PrivateLogisticRegression(classes=["ill", "well"], **QUICK)
    for inputs, labels in (
        (np.ma.masked_array(X, mask=hidden), LABELS),
        (X, np.ma.masked_array(LABELS, mask=hidden[:, 0])),
    ):
        with pytest.raises(InputError, match="must not be hidden by a mask; got hidden=1"):
            model.fit(inputs, labels)
    fitted = model.fit(np.ma.masked_array(X), LABELS)
    with pytest.raises(InputError, match="hidden by a mask"):
        fitted.predict(np.ma.masked_array(X, mask=hidden))


def test_a_delta_that_promises_nothing_is_warned_of():
    with pytest.warns(PrivacyLeakWarning, match="not below 1/n"):
        plain(delta=0.01).fit(X, LABELS)


def test_logarithms_of_probabilities():
    model = plain().fit(X, LABELS)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))


def test_what_parameters_mean_is_said_in_our_words():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    wide = PrivateMLPClassifier(delta=1e-4, classes=[0, 1], steps=np.int64(3), hidden=8).fit(X, y)
    assert (wide.n_iter_, wide.run_.module[0].out_features) == (3, 8)
    for wrong in ((1, 2, 3), "a", 5):
        with pytest.raises(InputError, match="target_range is two numbers"):
            PrivateLinearRegression(target_range=wrong).fit(X, y)
    with pytest.raises(InputError, match="two for each column; got columns=3"):
        PrivateLogisticRegression(classes=[0, 1], bounds=([-1, -1], [1, 1])).fit(X, y)
    with pytest.raises(InputError, match="hidden layers need"):
        PrivateMLPClassifier(classes=[0, 1], hidden=8.5).fit(X, y)
