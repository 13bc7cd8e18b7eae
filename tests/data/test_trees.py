"""Batches that are trees: dictionaries, records of different lengths, collate functions of the user's."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from dpsrm import InputError
from dpsrm.core.tree import Ragged, leaves
from dpsrm.data import DatasetRecords, TreeRecords, as_records


class Sentences(Dataset):
    """Token ids of different lengths, as dictionaries."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return {"ids": list(range(1, self.lengths[i] + 1)), "label": i % 2}


def padded(records):
    """What collate functions do: pad to the longest of the batch."""
    longest = max(len(record["ids"]) for record in records)
    ids = torch.zeros(len(records), longest, dtype=torch.long)
    for row, record in enumerate(records):
        ids[row, : len(record["ids"])] = torch.tensor(record["ids"])
    return {"ids": ids, "mask": ids > 0, "labels": torch.tensor([record["label"] for record in records])}


def test_dictionaries_of_arrays():
    records = as_records({"ids": np.arange(6).reshape(3, 2), "x": np.ones((3, 1)), "y": np.array([0, 1, 0])})
    batch = records.take(np.array([2, 0]))
    assert isinstance(records, TreeRecords)
    assert len(records) == 3
    assert batch["ids"].tolist() == [[4, 5], [0, 1]]
    assert batch["x"].dtype is torch.float32


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"a": np.ones(2), "b": np.ones(3)}, "same number of rows"),
        ({"a": np.array([1.0, np.nan])}, "finite"),
        ({"a": np.array(["x", "y"])}, "a must be an array of numbers"),
        ({"a": np.ones((0, 2))}, "at least one record"),
        ({}, "tree of tensors"),
    ],
)
def test_dictionaries_that_are_no_records(tree, words):
    with pytest.raises(InputError, match=words):
        as_records(tree)


def test_a_collate_function_sees_each_record_alone():
    """Padded to the batch's longest, a record would depend on the others: one long record would move them all."""
    short, with_long = (DatasetRecords(Sentences(lengths), padded) for lengths in ([2, 2, 3], [2, 2, 9]))
    batches = [records.take(np.array([0, 2, 1])) for records in (short, with_long)]
    assert all(isinstance(batch, Ragged) for batch in batches)
    assert [len(group["labels"]) for group in batches[0].groups] == [2, 1]
    for name in ("ids", "mask", "labels"):
        assert torch.equal(batches[0].groups[0][name], batches[1].groups[0][name])


PIXELS = torch.tensor([3, 7], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("others", "one"),
    [
        ((PIXELS, 0), (PIXELS / 255, 0)),
        ((PIXELS, 0), (PIXELS, 0.5)),
        ((PIXELS, 1), (PIXELS, True)),
        ((PIXELS, 1), (PIXELS, np.float64(1))),
        ((PIXELS.numpy(), 1), (PIXELS.numpy() / 255, 1)),
        ((PIXELS.numpy(), 1), (PIXELS.int(), 1)),
        ((PIXELS, 1), [PIXELS, 1]),
        ({"x": PIXELS, "mask": PIXELS}, {"x": PIXELS}),
        ({"x": PIXELS, "y": PIXELS}, {"y": PIXELS, "x": PIXELS}),
        ({"x": [1, (2, 3)]}, {"x": [1, (2, 3.0)]}),
    ],
)
def test_no_record_changes_the_type_of_another(others, one):
    """torch's collate finds a type for the whole batch: one record of floats made floats of everybody's pixels."""
    for records in ([one, others, others], [others, others, one]):
        with pytest.raises(InputError, match=r"must be alike.*same types; convert them"):
            DatasetRecords(records).take(np.arange(3))
    DatasetRecords([others, others]).take(np.arange(2))


def test_records_of_one_shape_are_one_batch():
    batch = DatasetRecords(Sentences([4, 4, 4]), padded).take(np.array([1, 2]))
    assert batch["ids"].shape == (2, 4)
    assert batch["labels"].tolist() == [1, 0]


def test_no_record_has_the_shape_of_one():
    batch = DatasetRecords(Sentences([4, 2]), padded).take(np.array([], dtype=int))
    assert [len(leaf) for leaf in leaves(batch)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (lambda records: {"n": len(records)}, "tree of tensors.*key='n', type='int'"),
        (lambda records: {"x": torch.zeros(1), "name": ["ann"]}, "key='name', type='str'"),
        (lambda records: torch.zeros(7, 2), r"row per record.*shape=\(7, 2\)"),
        (lambda records: torch.stack([record["ids"] for record in records]), "to collate"),
    ],
)
def test_collate_functions_that_give_no_batch(collate, words):
    with pytest.raises(InputError, match=words):
        DatasetRecords(Sentences([1, 1]), collate).take(np.array([0, 1]))
