"""Schema files: what they may say, and errors for the rest."""

import contextlib
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import InputError
from dpsrm.data.columns import Category, Ignored, Number
from dpsrm.data.encoders import encoder_from
from dpsrm.data.schema import Schema, read_schema, schema_from
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.tables import Table

GOOD = """
[columns.age]
kind = "number"
min = 17
max = 90
[columns.workclass]
kind = "category"
values = ["Private", "Self-emp", 3, 1.0]
[columns.id]
kind = "ignore"
[target]
column = "income"
classes = ["<=50K", ">50K"]
"""


def test_a_schema_file(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text(GOOD)
    columns = (
        Number("age", 17.0, 90.0),
        Category("workclass", ("Private", "Self-emp", "3", "1")),
        Ignored("id"),
    )
    assert read_schema(path) == Schema(columns, "income", ("<=50K", ">50K"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("min = 17", "", ["[columns.age] min", "None"]),
        ("min = 17", "min = 90", ["below max"]),
        ("min = 17", "min = true", ["number", "True"]),
        ("min = 17", "min = -inf", ["finite"]),
        ("min = 17", "mim = 17\nmin = 17", ["mim"]),
        ('"number"', '"numeric"', ["number, category, ordered", "numeric"]),
        ('["Private", "Self-emp", 3, 1.0]', "[]", ["workclass", "list"]),
        ('["Private", "Self-emp", 3, 1.0]', '"Private"', ["workclass", "list"]),
        ('["Private", "Self-emp", 3, 1.0]', "[1, 1.0]", ["differ"]),
        ('["Private", "Self-emp", 3, 1.0]', "[[1]]", ["workclass", "list"]),
        ('["<=50K", ">50K"]', '["<=50K"]', ["at least two"]),
        ('column = "income"', 'column = "age"', ["feature"]),
        ('column = "income"', "column = 3", ["name"]),
        ("[target]", "[targets]", ["targets"]),
        ("[columns.age]", "[columns.age", ["TOML"]),
    ],
)
def test_bad_schemas_are_named(tmp_path, old, new, words):
    path = tmp_path / "schema.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_schema(path)
    assert all(word in str(caught.value) for word in words), caught.value


WITHOUT = [{}, {"columns": {}}, {"columns": 3}, {"columns": {"a": 3}}, {"columns": {"a": {"kind": "ignore"}}}]


@pytest.mark.parametrize("document", WITHOUT)
def test_schemas_without_columns(document):
    with pytest.raises(InputError):
        schema_from(document)


def test_unreadable_schemas(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name in ("none.toml", "", "bytes.toml"):
        with pytest.raises(InputError, match="schema"):
            read_schema(tmp_path / name)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
nested = st.recursive(plain, lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=5), s, max_size=3))
entries = st.fixed_dictionaries(
    {"kind": st.sampled_from(["number", "category", "ignore"])}, optional={"min": plain, "max": plain, "values": nested}
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.dictionaries(st.text(max_size=3), entries | nested, max_size=3), nested)
def test_any_document_is_a_schema_or_an_input_error(columns, target):
    with contextlib.suppress(InputError):
        assert isinstance(schema_from({"columns": columns, "target": target}), Schema)


KINDS = """
[columns.age]
kind = "number"
min = 0
max = 100
knots = 5
[columns.school]
kind = "ordered"
values = ["none", "basic", "high"]
[columns.smokes]
kind = "boolean"
[columns.seen]
kind = "date"
min = 2020-01-01
max = "2020-01-05"
"""


def test_knots_ordered_categories_booleans_and_dates():
    cells = (("30", "200", "?"), ("basic", "other", ""), ("Yes", "0", ""), ("2020-01-02T10:00", "1999-01-01", "na"))
    encoder = SchemaEncoder(schema_from(tomllib.loads(KINDS)), normalise=False)
    found = encoder.encode(Table(("age", "school", "smokes", "seen"), cells))
    assert found.shape == (3, encoder.features) == (3, 6 + 6 + 2 + 2)
    age, school, smokes, seen = np.split(found, [6, 12, 14], axis=1)
    np.testing.assert_allclose(age, [[0, 0.8, 0.2, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]], atol=1e-7)
    assert school.tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert smokes.tolist() == [[1, 0], [-1, 0], [0, 1]]
    assert seen.tolist() == [[-0.5, 0], [-1, 0], [0, 1]]
    assert encoder_from(encoder.describe()) == encoder


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("knots = 5", "knots = 1", ["knots", "2 to 256"]),
        ("knots = 5", "knots = true", ["knots", "True"]),
        ('"2020-01-05"', "2020-01-01", ["below max"]),
        ('"2020-01-05"', '"soon"', ["YYYY-MM-DD", "soon"]),
        ('"2020-01-05"', "7", ["date", "7"]),
    ],
)
def test_bad_kinds_are_named(old, new, words):
    assert old in KINDS
    with pytest.raises(InputError) as caught:
        schema_from(tomllib.loads(KINDS.replace(old, new)))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("column", "cell", "word"), [("smokes", "maybe", "boolean"), ("seen", "x", "date"), ("seen", "3", "date")]
)
def test_cells_of_another_kind_are_named(column, cell, word):
    names = ("age", "school", "smokes", "seen")
    good = dict(zip(names, ("1", "basic", "no", "2020-01-02"), strict=True))
    bad = {**good, column: cell}
    table = Table(names, tuple((good[name], bad[name]) for name in names))
    with pytest.raises(InputError, match=f"calls a {word}.*column={column!r}, row=2"):
        SchemaEncoder(schema_from(tomllib.loads(KINDS))).encode(table)
