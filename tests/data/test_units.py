"""Ids in any order and spelling, their columns in files, and columns that look like them."""

import hashlib
import logging

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import Units, load, load_like
from dpsrm.data.encoding import HashEncoder
from dpsrm.data.tables import Table, identifier_names
from dpsrm.sampling import pick_rows


@pytest.mark.parametrize(
    "ids",
    [
        ["b", "a", "b", "c", "a"],
        [7, 3, 7, 9, 3],
        np.array([7.0, 3.0, 7.0, 9.5, 3.0]),
        torch.tensor([7, 3, 7, 9, 3]),
        np.array(["7", "3", "007", "x", " 3 "], dtype=object),
        [7, "3", 7.0, None.__class__.__name__, 3],
        [2**60 + 1, 2**60, 2**60 + 1, 5, 2**60],
        np.array([np.int64(1), "a", 1, 2.5, "a"], dtype=object),
    ],
)
def test_rows_are_grouped_by_who_they_are_in_the_order_of_first_appearance(ids):
    units = Units.of(ids)
    assert units.order.tolist() == [0, 2, 1, 4, 3]
    assert units.starts.tolist() == [0, 2, 4, 5]
    assert len(set(units.keys.tolist())) == len(units) == 3
    assert Units.of(units) is units


@pytest.mark.parametrize("other", [0.5, 1.0, "x", True])
def test_no_id_of_a_list_merges_others(other):
    """As floats, which one float in a NumPy array makes of all, long numbers of two people are one."""
    assert len(Units.of([2**53, 2**53 + 1, other])) == 3


@pytest.mark.parametrize(
    "ids",
    [
        ["Jos\u00e9", "Jose\u0301"],
        ["Jos\u00e9", "Jose\u200b\u0301"],
        ["A12", "A12\u200b"],
        ["A12", "\ufeffA12", "A\u00ad12", "\u202aA12\u202c", "\uff2112"],
        ["12", 12, "1\u200b2", "\uff11\uff12", " 12\u00a0", "1\ufe0f2", "12\x00"],
        ["ann", "ann\ufe0f", "ann\u034f", "ann\u180b", "a\u115fnn", "a\u1160nn", "ann\U000e0100", "ann\u17b4"],
        ["ann", "an\x07n", "an\x00n", "ann\u2800", "ann\x7f", "an\x9bn", "ann\u3164", "ann\uffa0", "ann\ufff1"],
        ["O'Brien", "O\u2019Brien", "O\u02bcBrien", "O\u00b4Brien", "O`Brien", "O\uff07Brien"],
        ["Ka'ahumanu", "Ka\u02bbahumanu", "Ka\u2018ahumanu", "Ka`ahumanu"],
        ["a-12", "a\u201012", "a\u201112", "a\u201312", "a\u221212", "a\uff0d12", "a\ufe5812", "a\u207b12"],
        ["-12", "\u221212", -12, "-12.0"],
        ["ann lee", "ann  lee", "ann\tlee", "ann\r\nlee", " ann \u200b lee ", "ann\u3000lee", "ann\u2028lee"],
    ],
)
def test_a_person_is_not_split_by_how_unicode_spells_them(ids):
    for given in (ids, np.array(ids, dtype=object)):
        assert len(Units.of(given)) == 1
    if all(isinstance(each, str) for each in ids):
        assert len(Units.of(np.array(ids))) == 1


def test_words_are_not_joined_and_letters_not_lost():
    assert len(Units.of(["ann lee", "annlee", "ann-lee", "ann_lee", "\u0e01\u0e33", "\u0e01", "\u2801", "\u1100"])) == 8


@pytest.mark.parametrize("ids", [["--5", "+-5", "-", "5"], ["9" * 4000, "8" * 4000]])
def test_ids_that_almost_are_numbers_are_texts(ids):
    assert len(Units.of(ids)) == len(ids)


def test_half_a_character_is_one_too():
    assert len(Units.of(["a\ud800", "a", "a\ud801", "a\ud800"])) == 3
    both = HashEncoder(("a",)).encode(Table(("a",), (("x\udc80", "y"),)))
    assert np.array_equal(both[1:], HashEncoder(("a",)).encode(Table(("a",), (("y",),))))


def test_an_id_longer_than_any_number_is_refused_in_our_words():
    with pytest.raises(InputError, match="every record must have an id"):
        Units.of(["a", "9" * 5000])


def test_an_id_under_a_mask_is_missing():
    """NumPy's own readers leave it out; everybody else reads what lies under it: one more unit for the same person."""
    hidden = np.ma.masked_array([7, 8, 7], mask=[False, True, False])
    with pytest.raises(InputError, match="hidden by a mask; got hidden=1"):
        Units.of(hidden)
    assert len(Units.of(np.ma.masked_array([7, 8, 7]))) == 2


def test_upper_and_lower_case_are_two():
    assert len(Units.of(["a12", "A12", "stra\u00dfe", "strasse", "jos\u00e9", "jose"])) == 6


def test_the_number_of_an_id_in_its_one_spelling_is_as_ever():
    """Rows are picked by it: a run whose ids were spelled in one way goes on the same."""
    plain = hashlib.blake2b("José 7b".encode(), digest_size=8).digest()
    assert Units.of(["José 7b"]).keys.tolist() == [int.from_bytes(plain, "little")]


@pytest.mark.parametrize("bad", [None, float("nan"), "", "  ", "NA", np.nan, "\u200b", " \ufeff", "\u2800", "\x00"])
def test_a_missing_id_is_an_error(bad):
    for ids in (["a", bad], np.array(["a", bad], dtype=object)):
        with pytest.raises(InputError, match=r"every record must have an id.*row=2"):
            Units.of(ids)
    if isinstance(bad, float):
        with pytest.raises(InputError, match="every record must have an id"):
            Units.of(np.array([1.0, bad]))


def test_ids_that_are_none():
    with pytest.raises(InputError, match="one-dimensional"):
        Units.of(np.zeros((2, 2)))
    with pytest.raises(InputError, match="numbers or texts"):
        Units.of(np.array(["2020-01-01"], dtype="datetime64[D]"))


def test_a_persons_number_depends_on_the_id_alone():
    one, other = Units.of(["ann", "bob"]), Units.of(["cy", "bob", "bob", "ann"])
    assert one.keys.tolist() == [other.keys[2], other.keys[1]]


def test_subsets_are_uniform_and_others_do_not_matter():
    grouping = np.arange(7), np.array([0, 5, 7]), np.array([3, 9], dtype=np.uint64)
    counts = {}
    for seed in range(20_000):
        rows, starts = pick_rows(grouping, np.array([0, 1]), most=2, seed=seed * 7919 + 1)
        assert starts.tolist() == [0, 2, 4]
        assert rows[2:].tolist() == [5, 6]
        pair = tuple(sorted(rows[:2].tolist()))
        counts[pair] = counts.get(pair, 0) + 1
    expected = 20_000 / 10
    assert sorted(counts) == [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert sum((c - expected) ** 2 / expected for c in counts.values()) < 50, "chi-squared, 9 degrees: p = 1e-7"


def test_large_subsets_have_no_row_twice():
    grouping = np.arange(100_000)[::-1].copy(), np.array([0, 100_000]), np.array([1], dtype=np.uint64)
    for most in (1, 33, 1000, 99_999):
        rows, _ = pick_rows(grouping, np.array([0]), most=most, seed=5)
        assert len(set(rows.tolist())) == most
        assert 0 <= rows.min() <= rows.max() < 100_000
    assert pick_rows(grouping, np.array([], dtype=int), most=3, seed=1)[0].tolist() == []


TABLE = "pid,age,ill\nann,31,yes\nbob,40,no\nann,32,no\n"


def test_the_column_of_ids_is_no_feature(tmp_path, caplog):
    (tmp_path / "visits.csv").write_text(TABLE)
    (tmp_path / "plain.csv").write_text("age,ill\n31,yes\n40,no\n32,no\n")
    with caplog.at_level(logging.WARNING):
        found, plain = load(tmp_path / "visits.csv", "ill", unit="pid"), load(tmp_path / "plain.csv", "ill")
    assert not caplog.messages
    assert torch.equal(found.records.inputs, plain.records.inputs)
    assert (len(found.records), found.n, plain.n) == (3, 2, 3)
    for other in ("visits.csv", "plain.csv"):
        assert torch.equal(load_like(tmp_path / other, found).records.inputs, found.records.inputs)
    assert "ann" not in str(found.description)


def test_without_a_unit_a_column_named_like_an_id_is_warned_of(tmp_path, caplog):
    (tmp_path / "visits.csv").write_text(TABLE)
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "visits.csv", "ill")
    (message,) = caplog.messages
    assert "pid looks like an identifier" in message
    assert "--unit pid" in message


def test_names_of_identifiers():
    yes = ["id", "ID", "patient_id", "PatientID", "userId", "household", "person", "ssn", "customer no", "e.mail_id"]
    no = [
        "age",
        "idp",
        "paid",
        "valid",
        "grid",
        "patient_age",
        "household_size",
        "input_ids",
        "covid",
        "width",
        "ideal",
    ]
    assert identifier_names([*yes, *no]) == yes


def test_ids_beside_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=np.array([0, 1, 0]), who=np.array(["a", "b", "a"]))
    assert load(tmp_path / "a.npz", unit="who").n == 2
    with pytest.raises(InputError, match="must be an array of the file"):
        load(tmp_path / "a.npz", unit="whom")
    (tmp_path / "a.svm").write_text("+1 1:0.5\n-1 2:1\n")
    with pytest.raises(InputError, match="LIBSVM text has no ids"):
        load(tmp_path / "a.svm", unit="who")
    (tmp_path / "t.csv").write_text(TABLE)
    with pytest.raises(InputError, match="must be a column of the file"):
        load(tmp_path / "t.csv", "ill", unit="who")


def test_long_numbers_of_a_parquet_file_are_not_confused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"who": [2**60, 2**60 + 1, 2**60], "age": [1.0, 2.0, 3.0], "ill": ["yes", "no", "no"]})
    pq.write_table(table, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", "ill", unit="who").n == 2


def test_a_schema_must_not_make_a_feature_of_the_ids(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    schema = '[columns.age]\nkind = "number"\nmin = 0\nmax = 100\n[columns.pid]\nkind = "{}"\n'
    (tmp_path / "bad.toml").write_text(schema.format("category") + 'values = ["ann"]\n')
    (tmp_path / "good.toml").write_text(schema.format("ignore"))
    with pytest.raises(InputError, match="must not be a feature as well"):
        load(tmp_path / "t.csv", "ill", unit="pid", schema=tmp_path / "bad.toml")
    assert load(tmp_path / "t.csv", "ill", unit="pid", schema=tmp_path / "good.toml").n == 2
