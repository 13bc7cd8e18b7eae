"""Defaults from public numbers: golden values, laws, and that what the user says wins."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpsrm.accounting.guarantee import gaussian_delta, gaussian_mu
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.core.files import read_toml
from dpsrm.data import Records
from dpsrm.gradients import binary_loss
from dpsrm.methods import Sgd, Srm, Theory
from dpsrm.training import Privacy, Settings, Training, make_private, train
from dpsrm.training.config import settings_from
from dpsrm.training.defaults import (
    LEAST_STEPS,
    MOST_STEPS,
    Choices,
    Shape,
    choose,
    default_training,
    explained,
    with_defaults,
)
from dpsrm.training.network_rule import network_training

PROMISE = Privacy(epsilon=1.0, delta=1e-5)
SHAPE = Shape(n=32561, classes=2, kind="logistic")


@pytest.mark.parametrize(
    ("n", "epsilon", "classes", "batch", "steps", "rate"),
    [
        (32561, 1.0, 2, 2048, 771, 8.0),
        (32561, 0.2, 2, 2048, 177, 8.0),
        (32561, 3.0, 2, 2048, 2070, 8.0),
        (40000, 1.0, 26, 512, 2681, 8.0),
        (1438, 1.0, 10, 512, 76, 8.0),
        (456, 1.0, 2, 456, 64, 1.35),
        (142, 0.2, 3, 142, 64, 0.118),
        (10**7, 1.0, 2, 2048, 4000, 8.0),
    ],
)
def test_golden(n, epsilon, classes, batch, steps, rate):
    method, training = default_training(n=n, epsilon=epsilon, delta=1e-5, classes=classes)
    assert method == Sgd()
    assert (training.batch, training.steps, training.learning_rate) == (batch, steps, rate)
    assert training.output == "tail"


@given(epsilon=st.floats(0.01, 20), delta=st.floats(1e-12, 1e-2))
def test_mu_spends_the_budget_exactly(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(1 / mu, epsilon) <= delta
    assert gaussian_delta(1 / (mu * 1.001), epsilon) > delta


@given(n=st.integers(1, 10**6), epsilon=st.floats(0.01, 20), more=st.floats(1, 100), classes=st.integers(2, 30))
def test_more_records_or_budget_or_classes_never_flow_less(n, epsilon, more, classes):
    """Neither steps nor step size fall."""

    def length(n, epsilon, classes, adjacency=Adjacency.REPLACE_ONE):
        _, t = default_training(n=n, epsilon=epsilon, delta=1e-6, classes=classes, adjacency=adjacency)
        assert LEAST_STEPS <= t.steps <= MOST_STEPS
        assert 0 < t.learning_rate <= 8
        assert 1 <= t.batch <= n
        return t.steps, t.learning_rate

    here = length(n, epsilon, classes)
    others = [length(math.ceil(n * more), epsilon, classes), length(n, epsilon * more, classes)]
    others += [length(n, epsilon, classes + 1), length(n, epsilon, classes, Adjacency.ADD_REMOVE)]
    assert all(other[0] >= here[0] and other[1] >= here[1] for other in others)


def test_the_promise_is_kept_by_the_accountant_not_by_the_rule(tmp_path):
    run = train(_layer(5), binary_loss, _records(3000), chosen(3000), out=tmp_path / "run")
    assert 0.99 < run.epsilon <= 1
    assert run.plan.schedule.batch == 2048


def test_a_run_writes_what_was_chosen(tmp_path):
    train(_layer(5), binary_loss, _records(300), chosen(300), out=tmp_path / "run")
    written = settings_from(read_toml(tmp_path / "run" / "config.toml"))
    expected = default_training(n=300, epsilon=1.0, delta=1e-5, classes=2)
    assert (written.method, written.training) == expected
    assert not written.left_out


@pytest.mark.parametrize(
    "given_",
    [
        {"method": Srm()},
        {"training": Training()},
        {"training": Training(steps=3)},
        {"privacy": None},
        {"privacy": Privacy(epsilon=1.0, delta=1e-5, noise_multiplier=2.0)},
        {"privacy": Privacy(epsilon=1.0, delta=1e-5, accountant="paper")},
        {"theory": Theory(lipschitz=1.0, smoothness=1.0, gap=1.0)},
    ],
)
def test_what_is_given_wins(given_):
    settings = Settings(**{"privacy": PROMISE, **given_})
    assert with_defaults(settings, SHAPE) is settings
    assert explained(settings, settings, SHAPE) is None


@pytest.mark.parametrize("section", [{"method": {"name": "srm"}}, {"training": {"learning_rate": 1.0}}])
def test_a_section_of_a_file_wins(section):
    budget = {"privacy": {"epsilon": 1.0, "delta": 1e-5}}
    assert settings_from(budget).left_out
    settings = settings_from({**budget, **section})
    assert with_defaults(settings, SHAPE) is settings


def test_unknown_models_keep_their_defaults():
    settings = Settings(privacy=PROMISE, seed=1)
    assert with_defaults(settings, Shape(n=100, classes=2, kind="one of a later version")) is settings


def test_numbers_and_networks_have_rules_of_their_own():
    method, training = default_training(n=5000, epsilon=1.0, delta=1e-5, classes=0, kind="linear")
    assert method.max_grad_norm < 1, "residuals are small"
    assert training.learning_rate <= 1, "the squared loss has four times the curvature"
    assert network_training(n=5000, parameters=5000, classes=0)[0].max_grad_norm < 1
    assert network_training(n=5000, parameters=5000, classes=2)[0].max_grad_norm > 1, "a smaller clip biases"


@pytest.mark.parametrize(
    ("n", "parameters", "classes", "batch", "steps", "rate"),
    [
        (60_000, 26_010, None, 1875, 320, 0.0035),
        (60_000, 50_890, None, 1875, 320, 0.0025),
        (5000, 5000, 2, 512, 300, 0.0049),
        (1438, 4810, 10, 512, 300, 0.011),
        (300, 10, None, 300, 300, 0.1),
        (10**7, 10**8, None, 8192, 3000, 1.8e-5),
    ],
)
def test_golden_networks(n, parameters, classes, batch, steps, rate):
    _, training = network_training(n=n, parameters=parameters, classes=classes)
    assert (training.batch, training.steps, training.learning_rate) == (batch, steps, rate)
    assert (training.optimizer, training.output) == ("dp-adam", "tail")


def _spiral(n, seed):
    """Two classes that no line parts: the sign of a product."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return Records(x, (x[:, 0] * x[:, 1] > 0).long())


def _small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))


def test_a_network_of_the_users_is_trained_by_the_rule_and_says_so(tmp_path, caplog):
    module, test = _small_network(), _spiral(2000, 1)
    run = train(module, binary_loss, _spiral(8000, 0), Settings(privacy=PROMISE, seed=1), out=tmp_path / "run")
    (line,) = caplog.messages
    assert all(word in line for word in ("n = 8000, 65 parameters alone", "300 steps of 512", "dp-adam", "training="))
    written = settings_from(read_toml(tmp_path / "run" / "config.toml"))
    assert (written.method, written.training) == network_training(n=8000, parameters=65)
    assert run.epsilon <= 1
    with torch.no_grad():
        wrong = ((module(test.inputs).squeeze(1) > 0) != (test.targets == 1)).double().mean()
    assert wrong < 0.15, "a coin errs half the time"


def test_a_loop_of_the_users_needs_no_optimizer_and_no_schedule(tmp_path):
    module, data = _small_network(), _spiral(2000, 0)
    private = make_private(model=module, losses=binary_loss, data=data, epsilon=1, delta=1e-5, out=tmp_path / "run")
    assert len(private.data_loader) == 300
    for batch in private.data_loader:
        private.step(batch)
        break
    assert private.steps_made == 1
    private.finish()
    config = read_toml(tmp_path / "run" / "config.toml")
    assert config["optimizer"] == {"name": "dp-adam", "lr": 0.072}
    assert (config["training"]["batch"], config["training"]["steps"]) == (512, 300)
    with pytest.raises(InputError, match="not both"):
        make_private(model=module, losses=binary_loss, data=data, epsilon=1, delta=1e-5, epochs=1, steps=2)


def test_what_an_estimators_user_chooses_wins_piece_by_piece():
    settings = Settings(privacy=PROMISE)
    ruled = choose(settings, SHAPE, Choices())
    assert (ruled.training, ruled.method) == (with_defaults(settings, SHAPE).training, Sgd())
    found = choose(settings, SHAPE, Choices(steps=7, max_grad_norm=0.3, regulariser=0.2))
    assert (found.training.steps, found.training.batch, found.training.regulariser) == (7, 2048, 0.2)
    assert found.method == Sgd(max_grad_norm=0.3)
    assert choose(settings, SHAPE, Choices(method="srm", max_grad_norm=0.3)).method == Srm(max_grad_norm=0.3)


def test_the_line_says_what_and_why():
    before = Settings(privacy=PROMISE)
    line = explained(before, with_defaults(before, SHAPE), SHAPE)
    assert all(word in line for word in ("n = 32561", "ε = 1", "sgd", "771 steps", "2048", "learning rate 8"))


def test_no_records_or_classes_are_refused():
    for wrong in ({"n": 0, "classes": 2}, {"n": 5, "classes": 1}):
        with pytest.raises(InputError):
            default_training(epsilon=1.0, delta=1e-5, **wrong)


def test_better_than_before_on_a_made_up_table(tmp_path):
    """A slow direction needs flow: records that differ little from each other."""
    records, test = _alike(20_000, seed=0), _alike(4000, seed=1)
    losses = []
    for name, settings in (("before", Settings(privacy=PROMISE, method=Srm(), seed=1)), ("now", chosen(20_000))):
        module = _layer(6)
        train(module, binary_loss, records, settings, out=tmp_path / name)
        with torch.no_grad():
            losses.append(float(binary_loss(module(test.inputs), test.targets).mean()))
    assert losses[1] < 0.9 * losses[0], losses


def chosen(n):
    """What the command line would train a logistic model of n records with."""
    return with_defaults(Settings(privacy=PROMISE, seed=1), Shape(n=n, classes=2, kind="logistic"))


def _layer(features):
    layer = nn.Linear(features, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _records(n):
    generator = torch.Generator().manual_seed(0)
    inputs = nn.functional.normalize(torch.randn(n, 5, generator=generator))
    return Records(inputs, (inputs[:, 0] > 0).long())


def _alike(n, *, seed):
    generator = torch.Generator().manual_seed(seed)
    signal = 0.1 * torch.randn(n, 5, generator=generator)
    inputs = nn.functional.normalize(torch.cat([torch.ones(n, 1), signal], dim=1))
    return Records(inputs, torch.bernoulli(torch.sigmoid(45 * inputs[:, 1]), generator=generator).long())
