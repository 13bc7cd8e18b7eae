"""A run of which little can be expected says so, before it starts, in the operator's log."""

import json

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import InputError
from dpsrm.data import load
from dpsrm.training import Privacy, Settings, Training, load_run


def go(folder, inputs, targets, *, epsilon=1.0, delta=1e-5, module=None, loss=None, seed=0, name="run"):
    settings = Settings(
        privacy=Privacy(epsilon=epsilon, delta=delta), training=Training(batch=1, steps=2, learning_rate=0.1), seed=seed
    )
    module = module or nn.Linear(inputs.shape[1], 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return dpsrm.train(module, loss or dpsrm.binary_loss, (inputs, targets), settings, out=folder / name)


def records(n, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(n, 3, generator=generator), torch.arange(n) % 2


def test_a_sound_run_says_nothing(tmp_path, caplog):
    go(tmp_path, *records(500))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("n", "change", "word"),
    [
        (500, {"delta": 0.002}, "is not below 1/n = 0.002"),
        (500, {"delta": 0.1}, "publishing one of the 500 records"),
        (
            500,
            {"epsilon": 0.1},
            "n times epsilon is 50, below 100: expect about what",
        ),
        (1, {}, "there is one record"),
    ],
)
def test_public_numbers_that_promise_little(tmp_path, caplog, n, change, word):
    go(tmp_path, *records(n), **change)
    assert [message for message in caplog.messages if word in message], caplog.messages
    assert len(caplog.messages) == 1


def test_one_class_only(tmp_path, caplog):
    X, _ = records(500)
    go(tmp_path, X, torch.ones(500, dtype=torch.long))
    (message,) = caplog.messages
    assert "all records have the class 1" in message
    assert "not for publication" in message


def test_unscaled_arrays_of_a_linear_model(tmp_path, caplog):
    go(tmp_path, *records(500, scale=1e4))
    (message,) = caplog.messages
    assert "the longest record has norm" in message
    assert "not for publication" in message


@pytest.mark.parametrize(("scale", "told"), [(1.0, 0), (1e3, 1)])
def test_unscaled_arrays_of_a_network_and_sparse_ones(tmp_path, caplog, scale, told):
    X, y = records(500, scale=scale)
    go(tmp_path, X, y, module=nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), name="network")
    go(tmp_path, scipy.sparse.csr_matrix(X.numpy()), y.numpy(), name="sparse")
    assert len([message for message in caplog.messages if "the longest record has norm" in message]) == 2 * told


def test_warnings_are_told_on_the_command_line_too(tmp_path, dpsrm, caplog):
    rows = "".join(f"{k},{'yes' if k % 3 else 'no'}\n" for k in range(40))
    (tmp_path / "x.csv").write_text("age,ill\n" + rows)
    budget = ["--epsilon", "1", "--delta", "0.1", "--out", tmp_path / "run", "--json"]
    told = dpsrm("train", "--data", tmp_path / "x.csv", "--target", "ill", *budget)
    assert told.code == 0
    assert json.loads(told.stdout)["epsilon"] <= 1
    assert [message.partition(" ")[0] for message in caplog.messages] == ["delta", "n"]


@pytest.mark.parametrize("kind", ["npz", "txt"])
def test_undeclared_scales_are_refused_and_declared_ones_taken(tmp_path, kind):
    X, y = np.array([[1.0, 2.0], [300.0, 400.0]]), np.array([0, 1])
    path = tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez(path, X=X, y=y)
    else:
        path.write_text("0 1:1 2:2\n1 1:300 2:400\n")
    with pytest.raises(InputError, match=r"row=1, norm=500\.0; .*--set data\.normalise=true"):
        load(path)
    assert load(path, normalise=False).records.inputs[1, :2].tolist() == [300, 400]
    assert load(path, normalise=True).records.inputs[1, :2].tolist() == pytest.approx([0.6, 0.8])


BUDGET = ["--epsilon", "1", "--delta", "1e-5", "--seed", "1", "--json"]


def test_measurements_whose_scale_nobody_knows_are_not_trained_on(tmp_path, dpsrm):
    X = np.random.default_rng(0).normal(size=(300, 2)) * [1.0, 1000.0]
    np.savez(tmp_path / "x.npz", X=X, y=(X[:, 0] > 0).astype(int))
    told = dpsrm("train", "--data", tmp_path / "x.npz", *BUDGET, "--out", tmp_path / "run")
    assert told.code == 2
    assert "save a table" in told.stderr
    assert not (tmp_path / "run").exists()


def test_images_are_trained_on_pixel_by_pixel_and_predicted(tmp_path, dpsrm):
    X = np.random.default_rng(0).integers(0, 256, size=(400, 4, 4), dtype=np.uint8)
    y = (X[:, 0, 0] > 127).astype(int)
    X[:, 1, 1] = 255 * y
    np.savez(tmp_path / "x.npz", X=X, y=y)
    files = ["--data", tmp_path / "x.npz", "--test", tmp_path / "x.npz", "--out", tmp_path / "run"]
    told = dpsrm("train", *files, *BUDGET, "--set", "privacy.epsilon=8")
    assert told.code == 0, told.stderr
    assert json.loads(told.stdout)["test"]["error"] < 0.1
    predicted = load_run(tmp_path / "run").predict(X).astype(int)
    assert (predicted != y).mean() == pytest.approx(json.loads(told.stdout)["test"]["error"])


def test_account_agrees_with_the_certificate_by_default(tmp_path, dpsrm):
    rows = "".join(f"{k},{'yes' if k % 3 else 'no'}\n" for k in range(300))
    (tmp_path / "x.csv").write_text("age,ill\n" + rows)
    for batch in (300, 50):
        given = ["--set", f"training.batch={batch}", "--set", "training.steps=20", "--out", tmp_path / f"{batch}"]
        told = json.loads(
            dpsrm("train", "--data", tmp_path / "x.csv", "--target", "ill", "--method", "sgd", *BUDGET, *given).stdout
        )
        by_hand = ["--n", told["n"], "--batch", told["batch"], "--steps", told["steps"], "--delta", 1e-5, "--json"]
        found = dpsrm("account", *by_hand, "--noise", told["noise_multiplier"])
        assert json.loads(found.stdout)["epsilon"] == told["epsilon"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("x.csv.gz", "unpack the file first"),
        ("x.ZIP", "unpack"),
        ("x.json", "convert it to .csv or .parquet"),
        ("x.xlsx", "convert it"),
    ],
)
def test_formats_that_are_not_read_are_named(tmp_path, dpsrm, name, word):
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    budget = ["--epsilon", "1", "--delta", "1e-5"]
    told = dpsrm("train", "--data", tmp_path / name, "--target", "y", *budget)
    assert told.code == 2
    assert f"{(tmp_path / name).suffix.lower()} files are not read" in told.stderr
    assert word in told.stderr


def test_a_npy_file_needs_that_of_its_labels(tmp_path, dpsrm):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY")
    told = dpsrm("train", "--data", tmp_path / "x.npy", "--target", "y", "--epsilon", "1", "--delta", "1e-5")
    assert told.code == 2
    assert "--target LABELS.npy" in told.stderr
    assert "np.savez" in told.stderr


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (["--epsilon", "1"], "missing=['delta']; give --delta"),
        (["--delta", "1e-5"], "missing=['epsilon']; give --epsilon"),
        ([], "give --epsilon and --delta"),
    ],
)
def test_what_is_missing_of_the_budget_is_named(tmp_path, dpsrm, given, word):
    (tmp_path / "x.csv").write_text("age,ill\n1,yes\n2,no\n")
    told = dpsrm("train", "--data", tmp_path / "x.csv", "--target", "ill", *given)
    assert told.code == 2
    assert word in told.stderr


def test_many_different_numbers_suggest_regression(tmp_path):
    (tmp_path / "x.csv").write_text("age,cost\n" + "".join(f"{k},{k * 1.5}\n" for k in range(12)))
    with pytest.raises(InputError, match="--task regression --target-range LOW,HIGH"):
        load(tmp_path / "x.csv", "cost")
    (tmp_path / "x.csv").write_text("age,cost\n1,a\n2,3\n")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "x.csv", "cost")
    assert "regression" not in str(caught.value)


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.csr_array, scipy.sparse.coo_array])
def test_sparse_inputs_train_as_dense_ones_do(tmp_path, form):
    X, y = records(500)
    X[X < 0.5] = 0
    dense = go(tmp_path, X, y, name="dense")
    sparse = go(tmp_path, form(X.numpy()), y.numpy(), name="sparse")
    assert torch.allclose(dense.module.weight, sparse.module.weight, atol=1e-6)
    assert load_run(sparse.folder.path, nn.Linear(3, 1)).guarantee.epsilon <= 1


def test_sparse_inputs_are_checked_like_dense_ones(tmp_path):
    X, y = scipy.sparse.csr_array(np.eye(3)), np.array([0, 1, 2])
    with pytest.raises(InputError, match="row=2, label=2"):
        go(tmp_path, X, y)
    deep = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    with pytest.raises(InputError, match=r"X\.toarray"):
        go(tmp_path, X, y % 2, module=deep)
    with pytest.raises(InputError, match="must hold numbers"):
        go(tmp_path, scipy.sparse.csr_array(np.eye(3, dtype=complex)), y % 2, module=nn.Linear(3, 1))
