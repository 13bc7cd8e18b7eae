"""Encoders: a record's features are a fixed function of that record."""

import json
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import InputError
from dpsrm.data.encoders import encoder_from
from dpsrm.data.encoding import HashEncoder, bucket, unit_norm
from dpsrm.data.schema import schema_from
from dpsrm.data.schema_encoding import SchemaEncoder
from dpsrm.data.tables import MISSING, Table

COLUMNS = ("age", "job", "pay")
SCHEMA = schema_from(
    {
        "columns": {
            "age": {"kind": "number", "min": 20, "max": 60},
            "job": {"kind": "category", "values": ["nurse", "cook", 3]},
            "pay": {"kind": "ignore"},
        }
    }
)

numbers = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(10**30), 10**30).map(str)
missing = st.sampled_from(["", " ", "?", "NA", "n/a", "NaN", "null", "None"])
words = st.text(string.ascii_letters + " =,", max_size=6).filter(lambda s: s.strip().lower() not in ("inf", "infinity"))
mixed = numbers | missing | words
records = st.tuples(numbers | missing, mixed, mixed)


def table(rows):
    return Table(COLUMNS, tuple(zip(*rows, strict=True)))


ENCODERS = {
    "hash": HashEncoder(COLUMNS, buckets=16),
    "pairs": HashEncoder(COLUMNS, buckets=16, pairs=32),
    "schema": SchemaEncoder(SCHEMA),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@settings(derandomize=True, deadline=None, max_examples=60)
@given(record=records, before=st.lists(records, max_size=4), after=st.lists(records, max_size=4))
def test_a_record_is_encoded_the_same_in_any_company(encoder, record, before, after):
    alone = encoder.encode(table([record]))[0]
    among = encoder.encode(table([*before, record, *after]))[len(before)]
    np.testing.assert_array_equal(alone, among)
    assert alone.dtype == np.float32
    assert alone.shape == (encoder.features,)
    norm = np.linalg.norm(alone.astype(np.float64))
    assert norm == pytest.approx(1, abs=1e-5) or not alone.any()


def test_pairs_tell_what_columns_alone_cannot():
    """Exclusive or: no linear function of two columns is right, one of their pairs is."""
    encoder = HashEncoder(("a", "b"), pairs=64, normalise=False)
    x = encoder.encode(Table(("a", "b"), (("yes", "yes", "no", "no", "?"), ("up", "down", "up", "down", "up"))))
    wanted = np.array([1.0, -1.0, -1.0, 1.0, 0.0])
    alone, pairs = x[:, :-64], x[:, -64:]
    assert np.linalg.lstsq(alone, wanted, rcond=None)[1].sum() > 3.9 or np.linalg.matrix_rank(alone) < 5
    fitted = pairs @ np.linalg.lstsq(pairs, wanted, rcond=None)[0]
    np.testing.assert_allclose(fitted, wanted, atol=1e-5)
    assert not pairs[4].any(), "a missing cell takes part in no pair"
    assert (np.abs(pairs).sum(1)[:4] == np.float32(np.sqrt(2))).all()
    described = encoder.describe()
    assert described["pairs"] == 64
    assert encoder_from(described) == encoder
    assert "pairs" not in HashEncoder(("a", "b")).describe()


def test_cells_of_the_hash_encoder():
    encoder = HashEncoder(("c",), buckets=8, normalise=False)
    cells = ("?", "0", "0.0", 0.0, "nurse", " nurse ", "Nurse", "1e6", "5", None)
    x = encoder.encode(Table(("c",), (cells,)))
    own, hashed = x[:, :-8], x[:, -8:]
    assert own[0, 0] == 1
    assert own[0].sum() == 1
    np.testing.assert_array_equal(own[1], own[2])
    np.testing.assert_array_equal(own[1], own[3])
    np.testing.assert_array_equal(x[4], x[5])
    at, sign = bucket("c", "nurse", 8)
    assert hashed[4, at] == sign
    assert np.abs(hashed[4]).sum() == 1
    assert not own[4].any()
    assert not hashed[[0, 1, 7, 8, 9]].any()
    np.testing.assert_array_equal(x[0], x[9])
    np.testing.assert_allclose(own[[1, 7, 8], 1:].sum(axis=1), 1, rtol=1e-6)


def test_hats_interpolate_between_their_knots():
    from dpsrm.data.encoding import KNOTS

    encoder = HashEncoder(("c",), buckets=1, normalise=False)
    hats = encoder.encode(Table(("c",), (KNOTS,)))[:, 1:-1]
    np.testing.assert_allclose(hats, np.eye(len(KNOTS)), atol=1e-6)
    inside = np.random.default_rng(0).uniform(-500, 5000, 100)
    hats = encoder.encode(Table(("c",), (tuple(inside),)))[:, 1:-1]
    np.testing.assert_allclose(hats @ np.arcsinh(KNOTS), np.arcsinh(inside), rtol=1e-4, atol=1e-5)
    ends = encoder.encode(Table(("c",), ((1e300, -1e300),)))[:, 1:-1]
    assert ends[0, -1] == ends[1, 0] == 1


# blake2b is specified (RFC 7693): a model trained on one machine must read its test file on another alike
GOLDEN_BUCKETS = [(117, 1), (159, 1), (39, 1)]


def test_the_hash_is_fixed_for_all_time():
    assert [bucket("job", text, 256) for text in ("nurse", "cook", "é")] == GOLDEN_BUCKETS


def test_cells_of_the_schema_encoder():
    encoder = SchemaEncoder(SCHEMA, normalise=False)
    rows = [("40", "nurse", ""), ("99", "smith", ""), ("-5", "?", ""), ("?", "3.0", ""), (30.0, 3, None)]
    x = encoder.encode(table(rows))
    assert x.tolist() == [
        [0, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 1, 0],
        [-1, 0, 0, 0, 0, 0, 1],
        [0, 1, 0, 0, 1, 0, 0],
        [-0.5, 0, 0, 0, 1, 0, 0],
    ]


def test_a_listed_missing_word_is_a_category():
    schema = schema_from({"columns": {"alley": {"kind": "category", "values": ["NA", "Grvl"]}}})
    x = SchemaEncoder(schema, normalise=False).encode(Table(("alley",), (("NA", "?", ""),)))
    assert x.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize("word", [w.upper() for w in MISSING] + [" na ", "-nan"])
def test_missing_words(word):
    for encoder in (HashEncoder(("age",)), SchemaEncoder(schema_from(AGE))):
        np.testing.assert_array_equal(*encoder.encode(Table(("age",), ((word, None),))))


AGE = {"columns": {"age": {"kind": "number", "min": 20, "max": 60}}}


@pytest.mark.parametrize(
    ("encoder", "rows", "words"),
    [
        (HashEncoder(COLUMNS), [("1", "a", "2"), ("inf", "a", "2")], ["column='age'", "row=2", "inf"]),
        (HashEncoder(COLUMNS), [("1", "-1e999", "2")], ["column='job'", "row=1", "-inf"]),
        (
            SchemaEncoder(SCHEMA),
            [("1", "a", ""), ("2", "a", ""), ("old", "a", "")],
            ["'age'", "row=3", "'old'", "category"],
        ),
        (SchemaEncoder(SCHEMA), [("Infinity", "a", "")], ["'age'", "row=1", "inf"]),
        (SchemaEncoder(schema_from(AGE)), [("1", "a", "")], ["column='job'", "[columns.job]", "ignore"]),
        (HashEncoder(("age",)), [("1", "a", "")], ["column='job'"]),
        (HashEncoder((*COLUMNS, "town")), [("1", "a", "")], ["missing='town'", "age, job, pay"]),
    ],
)
def test_bad_cells_and_columns_are_named(encoder, rows, words):
    with pytest.raises(InputError) as caught:
        encoder.encode(table(rows))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("encoder", [HashEncoder(COLUMNS), SchemaEncoder(SCHEMA)])
def test_descriptions_are_json(encoder):
    assert json.loads(json.dumps(encoder.describe())) == encoder.describe()
    assert encoder.describe()["features"] == encoder.features


def test_unit_norm_of_extremes():
    x = np.array([[3e38, 3e38], [1e-45, 0], [0, 0]], dtype=np.float32)
    np.testing.assert_allclose(np.linalg.norm(unit_norm(x), axis=1), [1, 1, 0], rtol=1e-6)
