"""Labels: fixed words or named classes, never the data's own list."""

import pytest

from dpsrm.core.errors import InputError
from dpsrm.data.tables import BINARY, parse_labels


@pytest.mark.parametrize("pair", BINARY)
def test_binary_words(pair):
    assert parse_labels(pair).tolist() == [0, 1]
    assert parse_labels([f" {word.upper()} " for word in pair]).tolist() == [0, 1]


def test_numbers_in_any_spelling():
    assert parse_labels(["+1", "-1.0", "1.0", 1, -1.0, "1e0"]).tolist() == [1, 0, 1, 1, 0, 1]
    assert parse_labels(["2.0", 3, "10"], ["10", "2", "3"]).tolist() == [1, 2, 0]


def test_order_of_classes_is_the_users():
    assert parse_labels(["b", "a", "c"], ["c", "b", "a"]).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("cells", "classes", "words"),
    [
        (["yes", "maybe"], None, ["row=2", "maybe", "--classes"]),
        (["1", "?"], None, ["row=2", "?", "label"]),
        (["1", None], None, ["row=2"]),
        (["-1", "0", "1"], None, ["one pair", "--classes"]),
        (["a", "d"], ["a", "b"], ["row=2", "'d'", "a, b", "correct the cell, or add it to --classes"]),
        (["a"], ["a"], ["at least two"]),
        (["a"], ["a", "a"], ["differ"]),
        (["a"], ["1", "1.0"], ["differ"]),
        (["a"], ["a", "?"], ["missing"]),
        (["2"], None, ["'2'"]),
        (["inf"], None, ["inf"]),
    ],
)
def test_bad_labels_are_named(cells, classes, words):
    with pytest.raises(InputError) as caught:
        parse_labels(cells, classes)
    assert all(word in str(caught.value) for word in words), caught.value
