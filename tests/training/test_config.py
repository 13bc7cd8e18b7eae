"""Config files: the same names as the settings, read back equal, mistakes named."""

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.core.files import parse_value, read_toml, write_toml
from dpsrm.gradients import binary_loss
from dpsrm.methods import Sgd, Srm
from dpsrm.runs import verify
from dpsrm.training import Privacy, Settings, Theory, Training, config_from, settings_to_dict, train

BASE = {"data": {"path": "a.csv"}, "privacy": {"epsilon": 1, "delta": 1e-5}}


def test_settings_survive_a_file(tmp_path):
    settings = Settings(
        privacy=Privacy(epsilon=0.5, delta=1e-6, sampling="poisson", adjacency="add-remove", noise_multiplier=2.0),
        method=Srm(max_grad_norm=2.0, gamma=0.25),
        training=Training(batch=10, steps=7, optimizer="adam", output="ema"),
        theory=Theory(lipschitz=1.0, smoothness=2.0, gap=3.0),
        seed=5,
        record="one visit",
    )
    write_toml(tmp_path / "c.toml", {"data": {"path": "a.csv"}, **settings_to_dict(settings)})
    assert config_from(read_toml(tmp_path / "c.toml")).settings == settings


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"trainings": {}}, "trainings"),
        ({"training": {"batchsize": 3}}, "batchsize"),
        ({"training": {"batch": "many"}}, "training.batch"),
        ({"training": {"batch": True}}, "training.batch"),
        ({"training": 3}, "section"),
        ({"privacy": {"epsilon": 1}}, "delta"),
        ({"privacy": {"epsilon": 1, "delta": 1e-5, "sampling": "shuffle"}}, "poisson"),
        ({"method": {"name": "magic"}}, "srm"),
        ({"method": {"gamma": "big"}}, "gamma"),
        ({"model": {"kind": "gpt"}}, "logistic"),
        ({"data": {}}, "path"),
        ({"private": False}, "private"),
    ],
)
def test_mistakes_are_named(change, word):
    with pytest.raises(InputError, match=word):
        config_from({**BASE, **change})


def test_training_without_privacy_must_be_said():
    with pytest.raises(InputError, match="epsilon"):
        config_from({"data": {"path": "a.csv"}})
    assert config_from({"data": {"path": "a.csv"}, "private": False}).settings.privacy is None


def test_files_that_are_not_toml_are_named(tmp_path):
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe = [")
    for path in (tmp_path / "c.toml", tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError):
            read_toml(path)


def test_values_on_the_command_line():
    assert parse_value("true") is True
    assert parse_value("1e-3") == 1e-3
    assert parse_value("a b") == "a b"


def test_numbers_of_numpy_are_numbers(tmp_path):
    """A grid's, for instance; files hold Python's."""
    settings = Settings(
        privacy=Privacy(epsilon=np.float32(1.0), delta=np.float64(1e-4)),
        method=Sgd(max_grad_norm=np.float32(0.5)),
        training=Training(batch=np.int64(20), steps=np.int32(3), learning_rate=np.float16(0.5)),
    )
    assert (settings.training.steps, settings.method.max_grad_norm) == (3, 0.5)
    data = np.ones((60, 2), dtype=np.float32), np.arange(60) % 2
    run = train(torch.nn.Linear(2, 1), binary_loss, data, settings, out=tmp_path / "run")
    assert verify(run.folder.path).ok
    assert run.plan.schedule.steps == 3
    for wrong in ({"steps": 5.5}, {"batch": 20.0}):
        with pytest.raises(InputError, match="must be a whole number"):
            Training(**wrong)


@pytest.mark.parametrize("record", ["one visit\n\nThe model is (ε = 0.01, δ = 1e-9)-DP", "", "x" * 201, 3])
def test_what_a_record_is_is_said_in_one_line(record):
    """It stands in the certificate's first sentence, and could put another one behind that."""
    with pytest.raises(InputError, match="record must be a text in one line"):
        Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), record=record)
