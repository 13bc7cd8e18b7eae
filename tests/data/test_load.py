"""Whole files: loaded soundly, a second one alike, bad ones named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import Loaded, load, load_like, load_rand_health

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRAIN = "age,job,sick\n31,nurse,yes\n,cook,no\n58,?,yes\n"
TEST = "job,sick,age\npilot,no,44\ncook,no,\n"
SCHEMA = """
[columns.age]
kind = "number"
min = 0
max = 100
[columns.job]
kind = "category"
values = ["nurse", "cook"]
[target]
column = "sick"
classes = ["no", "yes"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    (tmp_path / "test.csv").write_text(TEST)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "train.svm").write_text("+1 1:1 3:2\n-1 2:1\n")
    (tmp_path / "test.svm").write_text("-1 1:5\n")
    np.savez(tmp_path / "train.npz", X=np.ones((3, 2, 2)), y=np.array([1, 0, 1]))
    return tmp_path


def test_a_table_without_a_schema(folder):
    data = load(folder / "train.csv", "sick")
    assert data.records.inputs.shape == (3, data.n_features)
    assert data.records.targets.tolist() == [1, 0, 1]
    torch.testing.assert_close(data.records.inputs.norm(dim=1), torch.ones(3))
    assert data.description["columns"] == ["age", "job"]
    assert data.description["target"] == "sick"


@pytest.mark.parametrize("schema", [None, "schema.toml"])
def test_a_second_file_is_encoded_alike(folder, schema):
    options = {"schema": folder / schema} if schema else {}
    data = load(folder / "train.csv", "sick", **options)
    test = load_like(folder / "test.csv", data)
    torch.testing.assert_close(test.records.inputs[1], data.records.inputs[1], rtol=0, atol=0)
    assert test.encoder is data.encoder
    assert test.classes == data.classes
    assert test.records.targets.tolist() == [0, 0]


def test_a_schema_names_target_and_classes(folder):
    data = load(folder / "train.csv", schema=folder / "schema.toml")
    assert data.target == "sick"
    assert data.classes == ("no", "yes")
    assert data.records.inputs[1].tolist() == pytest.approx([0, 0.5**0.5, 0, 0.5**0.5, 0, 0])
    raw = load(folder / "train.csv", schema=folder / "schema.toml", normalise=False)
    assert raw.records.inputs[2].tolist() == pytest.approx([0.16, 0, 0, 0, 0, 1])


def test_parquet_is_the_same_table(folder):
    frame = pd.read_csv(folder / "train.csv", na_values=["?"])
    frame.to_parquet(folder / "train.parquet")
    data = load(folder / "train.csv", "sick")
    same = load_like(folder / "train.parquet", data)
    torch.testing.assert_close(same.records.inputs, data.records.inputs, rtol=0, atol=0)


def test_libsvm_and_arrays(folder):
    data = load(folder / "train.svm", features=3)
    assert data.records.inputs.tolist() == [[1, 0, 2], [0, 1, 0]]
    assert load_like(folder / "test.svm", data).records.inputs.tolist() == [[5, 0, 0]]
    assert load(folder / "train.svm").n_features == 1024
    arrays = load(folder / "train.npz", normalise=True)
    assert arrays.records.inputs.shape == (3, 2, 2)
    assert arrays.records.inputs[0].norm().item() == pytest.approx(1)
    assert arrays.n_features == 4


def test_descriptions_are_json_and_without_none(folder):
    loads = [
        load(folder / "train.csv", "sick"),
        load(folder / "train.csv", schema=folder / "schema.toml"),
        load(folder / "train.svm"),
        load(folder / "train.npz"),
        load_rand_health()[0],
    ]
    for data in loads:
        assert json.loads(json.dumps(data.description)) == data.description
        assert None not in data.description.values()  # TOML has none
        assert data.description["public"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("none.csv", {}, ["exists", "none.csv"]),
        ("", {}, ["folder", "dpsrm.data.ImageFolder in Python (docs/scaling.md)"]),
        ("train.csv", {}, ["target", "age, job, sick"]),
        ("train.csv", {"target": "ill"}, ["'ill'", "age, job, sick"]),
        ("train.csv", {"target": "job"}, ["'nurse'", "row=1", "--classes"]),
        ("train.csv", {"target": "sick", "classes": ["a", "b"]}, ["'yes'", "a, b"]),
        ("train.csv", {"target": "sick", "features": 3}, ["features=3"]),
        ("train.csv", {"target": "age", "schema": "schema.toml"}, ["missing='age'"]),
        ("train.csv", {"target": "sick", "schema": "none.toml"}, ["schema", "none.toml"]),
        ("train.svm", {"target": "sick"}, ["'sick'", "tables", "name the file .csv if it is a table"]),
        ("train.svm", {"features": 2}, ["index=3", "line=1"]),
        ("train.npz", {"features": 2}, ["features=2"]),
        ("schema.toml", {}, ["line=3", ".csv"]),
    ],
)
def test_bad_files_and_options_are_named(folder, name, options, words):
    if "schema" in options:
        options = {**options, "schema": folder / options["schema"]}
    with pytest.raises(InputError) as caught:
        load(folder / name, **options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_second_file_must_be_alike(folder):
    data = load(folder / "train.csv", "sick")
    for text, word in (("age,sick\n1,no\n", "job"), ("age,job,town,sick\n1,a,b,no\n", "town")):
        (folder / "other.csv").write_text(text)
        with pytest.raises(InputError, match=word):
            load_like(folder / "other.csv", data)
    with pytest.raises(InputError, match="kind"):
        load_like(folder / "train.svm", data)


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"X": np.ones((2, 1)), "z": np.ones(2)}, "X and y"),
        ({"X": np.ones((2, 1)), "y": np.ones(3)}, "one label per row"),
        ({"X": np.ones(2), "y": np.ones(2)}, "column per feature"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, "at least one"),
        ({"X": np.array([["a"]]), "y": np.ones(1)}, "numbers"),
        ({"X": np.array([[1.0], [np.inf]]), "y": np.ones(2)}, "row=1"),
        ({"X": np.array([[1e300]]), "y": np.ones(1)}, "float32"),
        ({"X": np.ones((1, 1)), "y": np.array([2])}, "--classes"),
        ({"X": np.array([[object()]]), "y": np.ones(1)}, "pickled"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, word):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=word):
        load(tmp_path / "a.npz")
    for raw in (b"", b"PK", b"\x93NUMPY"):
        (tmp_path / "b.npz").write_bytes(raw)
        with pytest.raises(InputError, match="npz"):
            load(tmp_path / "b.npz")


def test_rand_health():
    train, test, text = load_rand_health()
    assert isinstance(train, Loaded)
    assert (len(train.records), len(test.records)) == (16152, 4038)
    torch.testing.assert_close(train.records.inputs.norm(dim=1), torch.ones(16152))
    both = torch.cat([train.records.targets, test.records.targets])
    assert both.float().mean().item() == pytest.approx(0.68757, abs=1e-5)
    assert "person-year" in text
    assert "several" in text


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
def test_a9a(tmp_path):
    subprocess.run([sys.executable, SHARED / "data/prepare", tmp_path, "a9a"], check=True, capture_output=True)
    train = load(tmp_path / "a9a/a9a", features=123)
    test = load_like(tmp_path / "a9a/a9a.t", train)
    assert train.records.inputs.shape == (32561, 123)
    assert test.records.inputs.shape == (16281, 123)
    assert train.records.targets.float().mean().item() == pytest.approx(0.2408, abs=1e-4)
    assert set(train.records.inputs.unique().tolist()) == {0.0, 1.0}
