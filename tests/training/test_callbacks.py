"""Callbacks of `train`: measuring, stopping honestly, writing to trackers; and a run read back."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import InputError, LedgerError, MissingExtra
from dpsrm.gradients import multiclass_loss
from dpsrm.training import Privacy, Settings, Training, train


def records():
    stream = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 6, generator=stream)
    return inputs, (inputs[:, 0] > 0).long()


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 2))


def go(out, *callbacks, steps=12):
    settings = Settings(
        privacy=Privacy(epsilon=9.0, delta=1e-4, accountant="rdp"),
        training=Training(batch=20, steps=steps, learning_rate=0.3, output="last"),
        seed=1,
    )
    return train(network(), multiclass_loss, records(), settings, out=out, callbacks=callbacks)


def measure(model):
    assert not model.training
    inputs, targets = records()
    return {"error": (model(inputs).argmax(1) != targets).float().mean()}


def test_the_model_is_measured_as_it_is_after_the_step(tmp_path):
    evaluate, seen = dpsrm.Evaluate(measure, every=5), []
    run = go(tmp_path / "run", evaluate, lambda progress: seen.append((progress.metrics, progress.model.training)))
    assert [step for step, _ in evaluate.history] == [5, 10, 12]
    assert [bool(metrics) for metrics, _ in seen] == [step in (5, 10, 12) for step in range(1, 13)]
    assert all(training for _, training in seen)
    assert evaluate.history[-1][1] == {"error": float(measure(run.module.eval())["error"])}


def test_a_layer_in_another_mode_than_the_model_stays_in_it(tmp_path):
    """Frozen statistics, a dropout turned off."""
    one = network()
    one[1].eval()
    settings = Settings(privacy=Privacy(epsilon=9.0, delta=1e-4), training=Training(batch=20, steps=2))
    train(one, multiclass_loss, records(), settings, out=tmp_path / "run", callbacks=[dpsrm.Evaluate(measure)])
    assert [each.training for each in one] == [True, False, True]


def test_callbacks_change_nothing(tmp_path):
    go(tmp_path / "a")
    go(tmp_path / "b", dpsrm.Evaluate(measure))
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert (tmp_path / "a/ledger.jsonl").read_bytes() == (tmp_path / "b/ledger.jsonl").read_bytes()


def test_callbacks_cannot_move_the_run(tmp_path):
    """What they are given is a copy: a run that is replayed after a crash must go the same way."""

    def meddle(progress):
        progress.theta.zero_()
        progress.direction.zero_()
        for parameter in progress.model.parameters():
            parameter.data.zero_()

    go(tmp_path / "a")
    go(tmp_path / "b", meddle)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_early_stopping_is_certified_as_the_whole_plan(tmp_path):
    numbers = iter([3.0, 2.0, 2.5, 2.5, 2.5])
    callbacks = dpsrm.Evaluate(lambda _: {"loss": next(numbers)}, every=2), dpsrm.EarlyStopping("loss", patience=2)
    run = go(tmp_path / "run", *callbacks, steps=70)
    found = dpsrm.verify(tmp_path / "run")
    assert found.ok
    assert (found.facts.released, found.facts.spending.releases) == (8, 64)
    assert run.epsilon == run.plan.guarantee.epsilon
    assert "stopped before its plan of 70 releases" in (tmp_path / "run/certificate.md").read_text()


def test_the_largest_may_be_the_best(tmp_path):
    numbers = iter([0.1, 0.2, 0.3, 0.2])
    stopping = dpsrm.EarlyStopping("accuracy", patience=1, largest=True)
    go(tmp_path / "run", dpsrm.Evaluate(lambda _: {"accuracy": next(numbers)}), stopping)
    assert dpsrm.verify(tmp_path / "run").facts.released == 4
    assert stopping.best == -0.3


def test_a_metric_that_nobody_measures_is_named(tmp_path):
    with pytest.raises(InputError, match="measures accuracy"):
        go(tmp_path / "run", dpsrm.Evaluate(measure), dpsrm.EarlyStopping("accuracy"))


def test_trackers_get_what_may_be_published(tmp_path, monkeypatch):
    written = []
    mlflow = ModuleType("mlflow")
    mlflow.log_metrics = lambda numbers, step: written.append((step, numbers))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    go(tmp_path / "run", dpsrm.Evaluate(measure, every=6), dpsrm.MLflow(every=5))
    assert [step for step, _ in written] == [5, 6, 10, 12]
    assert set(written[0][1]) == {"epsilon", "direction_norm"}
    assert set(written[1][1]) == {"epsilon", "direction_norm", "error"}
    spent = [numbers["epsilon"] for _, numbers in written]
    assert spent == sorted(spent)
    assert 0 < spent[0] < spent[-1] <= 9
    written.clear()
    go(tmp_path / "private", dpsrm.MLflow(private=True))
    assert {"private/loss", "private/clipped_0"} < set(written[0][1])


def test_a_tracker_that_is_not_installed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"dpsrm\[tracking\]"):
        dpsrm.TensorBoard(tmp_path / "board")


def test_a_run_is_read_back(tmp_path):
    run = go(tmp_path / "run")
    other = network()
    found = dpsrm.load_run(tmp_path / "run", other, expect=run.head)
    assert found.guarantee.epsilon == run.epsilon
    assert all(torch.equal(x, y) for x, y in zip(other.parameters(), run.module.parameters(), strict=True))
    with pytest.raises(InputError, match="does not fit"):
        dpsrm.load_run(tmp_path / "run", nn.Linear(3, 1))
    with pytest.raises(InputError, match="give the module"):
        dpsrm.load_run(tmp_path / "run")
    (tmp_path / "run/config.toml").write_text("edited = true\n")
    with pytest.raises(LedgerError, match=r"config\.toml was changed"):
        dpsrm.load_run(tmp_path / "run", other)
