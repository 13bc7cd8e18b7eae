"""Predictions from a published folder alone equal those of the model in memory, bit for bit."""

import csv
import json
import shutil

import numpy as np
import pytest
import scipy.sparse
import torch

import dpsrm
from dpsrm.cli.job import TrainingJob, run_job
from dpsrm.core.errors import InputError, LedgerError
from dpsrm.data import load, load_like
from dpsrm.data.encoders import encoder_from
from dpsrm.training import Model, Privacy, Settings, Training, load_run
from dpsrm.training.config import plain

SCHEMA = """
columns.age = {kind = "number", min = 17, max = 90.5}
columns.job = {kind = "category", values = ["nurse", "1.50", "NA"]}
columns."the name" = {kind = "ignore"}
"""
WORDS = {2: ["no", "yes"], 3: ["low, or none", "middle", "high"]}


def write(path, kind, *, classes, rows, labelled, seed):
    """A file of records of any kind the command line reads."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 6))
    y = np.clip(np.floor(x[:, 0] + classes / 2), 0, classes - 1).astype(int)
    words = [WORDS[classes][k] for k in y]
    if kind in ("hash", "schema"):
        jobs = np.where(rng.random(rows) < 0.2, "", np.array(["nurse", "1.5", "pilot"])[y])
        with path.open("w", newline="") as file:
            table = [[str(20 + 50 * abs(a)), job, "x"] for a, job in zip(x[:, 0], jobs, strict=True)]
            head = ["age", "job", "the name"]
            if labelled:
                head, table = ["ill", *head], [[w, *row] for w, row in zip(words, table, strict=True)]
            csv.writer(file).writerows([head, *table])
    elif kind == "npz":
        np.savez(path, X=x, **({"y": np.array(words)} if labelled else {}))
    elif kind == "libsvm":
        lines = (" ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for row in x)
        path.write_text("".join(f"{f'{k} ' if labelled else ''}{line}\n" for k, line in zip(y, lines, strict=True)))
    else:
        raise AssertionError(kind)
    return path


def names(kind, classes):
    return [str(k) for k in range(classes)] if kind == "libsvm" else WORDS[classes]


def job(folder, kind, *, classes, model):
    """A job as `dpsrm train` makes it."""
    suffix = {"hash": "csv", "schema": "csv", "npz": "npz", "libsvm": "txt"}[kind]
    data = write(folder / f"train.{suffix}", kind, classes=classes, rows=120, labelled=True, seed=0)
    (folder / "schema.toml").write_text(SCHEMA)
    table = {"target": "ill"} if kind in ("hash", "schema") else {}
    schema = {"schema": folder / "schema.toml"} if kind == "schema" else {}
    loaded = load(data, **table, **schema, classes=names(kind, classes))
    return TrainingJob(
        records=loaded,
        test=None,
        model=Model(kind=model, hidden=(5, 4)),
        settings=Settings(
            privacy=Privacy(epsilon=50.0, delta=1e-3),
            training=Training(batch=30, steps=20, learning_rate=2.0),
            seed=3,
        ),
        about={"model": plain(Model(kind=model, hidden=(5, 4))), "preprocessing": loaded.description},
        out=folder / "run",
        overwrite=False,
        reference=False,
    )


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", ["hash", "schema", "libsvm", "npz"])
def test_predict_equals_the_model_in_memory(tmp_path, dpsrm, kind, classes, model):
    made = job(tmp_path, kind, classes=classes, model=model)
    run = run_job(made).run
    suffix = next(tmp_path.glob("train.*")).suffix
    facts = {"classes": classes, "rows": 40, "seed": 1}
    labelled = write(tmp_path / f"labelled{suffix}", kind, labelled=True, **facts)
    bare = write(tmp_path / f"bare{suffix}", kind, labelled=False, **facts)
    with torch.no_grad():
        wanted = run.module(load_like(labelled, made.records).records.inputs)

    # only what is published, elsewhere; no training file, no schema file
    shutil.copytree(run.folder.path, tmp_path / "published", ignore=shutil.ignore_patterns("private"))
    next(tmp_path.glob("train.*")).unlink()
    (tmp_path / "schema.toml").unlink()
    loaded = load_run(tmp_path / "published")
    assert loaded.epsilon == run.epsilon
    for file in (labelled, bare):
        assert torch.equal(loaded.outputs(file), wanted)
    wide = torch.cat([torch.zeros_like(wanted), wanted], 1) if classes == 2 else wanted
    shares = wide.double().softmax(1).numpy()
    words = [names(kind, classes)[k] for k in wide.argmax(1)]
    assert len(set(words)) > 1, "a test in which all predictions are alike shows little"
    assert loaded.predict(bare).tolist() == words
    assert np.array_equal(loaded.predict_proba(bare), shares)

    told = dpsrm("predict", tmp_path / "published", "--data", bare, "--proba", "--out", tmp_path / "answer.csv")
    assert (told.code, told.stdout) == (0, "")
    with (tmp_path / "answer.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["prediction", *(f"probability_{name}" for name in names(kind, classes))]
    assert [row[0] for row in rows] == words
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=float), shares)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table without schema, and a run on LIBSVM text."""
    folder = tmp_path_factory.mktemp("trained")
    found = {}
    for kind in ("hash", "libsvm", "npz"):
        (folder / kind).mkdir()
        found[kind] = run_job(job(folder / kind, kind, classes=2, model="logistic")).run.folder.path
    return found


def test_stdout_is_csv_and_json_is_one_object(trained, tmp_path, dpsrm, answer):
    new = tmp_path / "new.csv"
    new.write_text("job,age,the name\nnever seen,31,a\n?,,b\n")
    told = dpsrm("predict", trained["hash"], "--data", new)
    assert told.code == 0
    head, *rows = told.stdout.splitlines()
    assert head == "prediction"
    assert len(rows) == 2
    assert set(rows) <= {"no", "yes"}
    body = answer("predict", trained["hash"], "--data", new, "--proba")
    assert body["prediction"] == rows
    assert body["rows"] == 2
    assert np.add(body["probability_no"], body["probability_yes"]) == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("age,job", ["must have every column", "missing='the name'"]),
        ("age,job,the name,city", ["only the columns age, job, the name", "column='city'"]),
    ],
)
def test_missing_and_unknown_columns_are_named(trained, tmp_path, dpsrm, header, words):
    new = tmp_path / "new.csv"
    new.write_text(header + "\n" + ",".join("1" * len(header.split(","))) + "\n")
    told = dpsrm("predict", trained["hash"], "--data", new)
    assert told.code == 2
    assert all(word in told.stderr for word in words), told.stderr


def test_tables_in_python_are_files_in_memory(trained, tmp_path):
    import pandas as pd

    run = load_run(trained["hash"])
    columns = {"age": [31, None, 57.5], "job": ["nurse", "pilot", None], "the name": ["a", "b", "c"]}
    frame = pd.DataFrame({**columns, "ill": ["no", "yes", "no"]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    wanted = run.outputs(tmp_path / "new.csv")
    assert torch.equal(run.outputs(columns), wanted)
    assert torch.equal(run.outputs(frame), wanted)
    assert torch.equal(run.outputs(frame.astype({"job": "category"})), wanted)
    with pytest.raises(InputError, match="the same length"):
        run.predict({"age": [1], "job": ["a", "b"], "the name": ["x"]})
    with pytest.raises(InputError, match="of the kind the model was made for"):
        run.predict(np.ones((2, 3)))
    with pytest.raises(InputError, match="must be a path, a DataFrame"):
        run.predict(7)


@pytest.mark.parametrize("kind", ["libsvm", "npz"])
def test_arrays_tensors_and_sparse_matrices_are_the_same_records(trained, kind):
    run = load_run(trained[kind])
    x = np.random.default_rng(2).standard_normal((5, 6))
    x[x < 0] = 0
    wanted = run.outputs(x)
    assert torch.equal(run.outputs(torch.from_numpy(x)), wanted)
    assert torch.equal(run.outputs(scipy.sparse.csr_array(x)), wanted)
    assert torch.equal(run.outputs(scipy.sparse.coo_matrix(x)), wanted)
    with pytest.raises(InputError, match="finite"):
        run.predict(np.full((1, 6), np.nan))
    with pytest.raises(InputError):
        run.predict(np.empty((0, 6)))


def test_a_folder_that_does_not_verify_predicts_nothing(trained, tmp_path, dpsrm):
    shutil.copytree(trained["hash"], tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('"no"', '"on"'))
    with pytest.raises(LedgerError, match=r"config\.toml"):
        load_run(tmp_path / "run")
    told = dpsrm("predict", tmp_path / "run", "--data", "x.csv")
    assert told.code == 2
    assert "does not verify" in told.stderr


def test_a_run_on_tensors_says_that_it_has_no_encoder(tmp_path):
    module = torch.nn.Linear(3, 1)
    settings = Settings(
        privacy=Privacy(epsilon=8.0, delta=1e-3), training=Training(batch=5, steps=1, learning_rate=1.0), seed=0
    )
    records = torch.randn(20, 3), torch.arange(20) % 2
    dpsrm.train(module, dpsrm.binary_loss, records, settings, out=tmp_path / "run")
    run = load_run(tmp_path / "run", torch.nn.Linear(3, 1))
    with pytest.raises(InputError, match=r"call run\.module"):
        run.predict(records[0])


def test_an_encoder_of_another_version_is_refused(trained):
    facts = load_run(trained["hash"]).config["preprocessing"]
    assert encoder_from(facts).describe().items() <= facts.items()
    for change in ({"hash": "md5"}, {"knots": [0.0, 1.0]}, {"format": "xml"}, {"features": 7}):
        with pytest.raises(InputError, match="this version of dpsrm"):
            encoder_from({**facts, **change})
    with pytest.raises(InputError, match="how records are encoded"):
        encoder_from({"format": "table"})


def test_the_demo_can_be_predicted_from(tmp_path, answer):
    answer("demo", "--out", tmp_path / "demo")
    columns = list(load_run(tmp_path / "demo").config["preprocessing"]["columns"])
    new = tmp_path / "new.csv"
    new.write_text(",".join(columns) + "\n" + ",".join("0.5" for _ in columns) + "\n")
    body = answer("predict", tmp_path / "demo", "--data", new, "--proba")
    assert body["prediction"][0] in ("no visit", "visit")
    assert json.dumps(body)
