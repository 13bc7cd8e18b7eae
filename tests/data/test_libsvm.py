"""LIBSVM text: equal to scikit-learn's reader where that accepts, errors with their line."""

import io

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from dpsrm.core.errors import DpsrmError, InputError
from dpsrm.data.libsvm import FOLD, LibsvmEncoder, read_libsvm

TEXT = b"+1 1:0.5 3:-2e3 # first\n\n# nothing\r\n-1 5:1\r\n0 \n1 2:1 1:7\n"


def test_equals_scikit_learn():
    sorted_text = TEXT.replace(b"2:1 1:7", b"1:7 2:1")
    x, y = load_svmlight_file(io.BytesIO(sorted_text), n_features=5, zero_based=False)
    rows = read_libsvm(TEXT)
    np.testing.assert_array_equal(LibsvmEncoder(features=5).encode(rows), x.toarray().astype(np.float32))
    assert [float(label) for label in rows.labels] == y.tolist()
    assert rows.lines.tolist() == [1, 4, 5, 6]


def test_folding_is_lossless_up_to_its_size_and_adds_beyond():
    encoder = LibsvmEncoder(folded=True)
    x = encoder.encode(read_libsvm(b"1 1:1 1024:2\n1 1025:4 1:8\n"))
    assert x.shape == (2, FOLD)
    assert x[0, [0, 1023]].tolist() == [1, 2]
    assert x[1, 0] == 12
    assert "mod 1024" in str(encoder.describe()["public"])


def test_normalise_scales_each_record():
    x = LibsvmEncoder(features=2, normalise=True).encode(read_libsvm(b"1 1:3e30 2:4e30\n1\n"))
    np.testing.assert_allclose(x, [[0.6, 0.8], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["empty"]),
        (b"# only\n", ["empty"]),
        (b"1 1:1\n1 2:inf\n", ["line=2", "2:inf", "finite"]),
        (b"1 1:1\n\n1 2:nan\n", ["line=3", "2:nan"]),
        (b"1 2:1e999\n", ["line=1"]),
        (b"1 0:1\n", ["line=1", "from 1"]),
        (b"1 -3:1\n", ["-3:1"]),
        (b"1 99999999999999999999:1\n", ["line=1"]),
        (b"1 1\n", ["line=1"]),
        (b"1 1:\n", ["line=1"]),
        (b"1 a:1\n", ["a:1"]),
        (b"1 qid:3 1:1\n", ["qid:3"]),
        (b"1 1_0:1\n", ["1_0:1"]),
        (b"1:1 2:1\n", ["line=1", "label"]),
        (b"\xff 1:1\n", ["line=1", "label"]),
        (b"1 1:1\n1 3:1 2:1 3:2\n", ["line=2", "index=3", "once"]),
    ],
)
def test_bad_lines_are_named(raw, words):
    with pytest.raises(InputError) as caught:
        read_libsvm(raw)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"1 1:1\n1 4:1\n", ["line=2", "index=4", "features=3"]),
        (b"1 1:1\n1 2:1e39\n", ["line=2", "index=2", "float32"]),
    ],
)
def test_values_that_do_not_fit(raw, words):
    with pytest.raises(InputError) as caught:
        LibsvmEncoder(features=3).encode(read_libsvm(raw))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("features", [0, -1, 10**7])
def test_number_of_features(features):
    with pytest.raises(InputError, match="features"):
        LibsvmEncoder(features=features)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.binary(max_size=60) | st.text("1230:-+.e#n \t\r\n\0", max_size=40).map(str.encode))
@example(b"1 " + b"1" * 5000 + b":1")
@example("1 ١:1".encode())
@example(b"\0")
def test_any_bytes_are_records_or_an_input_error(raw):
    try:
        rows = read_libsvm(raw)
        x = LibsvmEncoder(folded=True).encode(rows)
    except DpsrmError:
        return
    assert len(x) == len(rows.labels) > 0
    assert np.isfinite(x).all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.dictionaries(st.integers(1, 3000), st.floats(-1e3, 1e3, width=32), max_size=4), min_size=1, max_size=4)
)
def test_a_record_is_encoded_the_same_in_any_company(records):
    lines = ["1 " + " ".join(f"{i}:{v!r}" for i, v in record.items()) for record in records]
    encoder = LibsvmEncoder(folded=True, normalise=True)
    together = encoder.encode(read_libsvm("\n".join(lines).encode()))
    alone = [encoder.encode(read_libsvm(line.encode()))[0] for line in lines]
    np.testing.assert_array_equal(together, alone)
