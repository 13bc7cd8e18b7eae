"""Schema files: what they may say, and errors for the rest."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import InputError
from dpsrm.data.schema import Category, Ignored, Number, Schema, read_schema, schema_from

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
        ('"number"', '"numeric"', ["number, category or ignore", "numeric"]),
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
