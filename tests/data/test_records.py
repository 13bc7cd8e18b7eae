"""Records: arrays and datasets give the same batches; bad arrays are named."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset

from dpsrm.core.errors import InputError
from dpsrm.core.tree import leaves
from dpsrm.data import DatasetRecords, Records, as_records
from dpsrm.data.repeats import need_each_once
from dpsrm.gradients import Objective

X = np.arange(12, dtype=np.float64).reshape(4, 3)
Y = np.array([0, 1, 1, 0], dtype=np.int32)


class Pairs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], bool(Y[i])


class Named(Subset):
    """A class of the user's that reads as its parent does."""

    name = "rare classes more often"


@pytest.mark.parametrize("indices", [[], [2], [3, 0, 3]])
def test_a_dataset_gives_the_batches_of_its_arrays(indices):
    slow, fast = as_records(Pairs()), as_records((X, Y))
    assert isinstance(slow, DatasetRecords)
    assert isinstance(fast, Records)
    assert len(slow) == len(fast) == 4
    for a, b in zip(slow.take(np.array(indices, dtype=int)), fast.take(np.array(indices, dtype=int)), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape


def test_types_and_shapes():
    inputs, targets = as_records((X, Y)).take(np.array([], dtype=np.int64))
    assert inputs.shape == (0, 3)
    assert targets.shape == (0,)
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert as_records((X, Y > 0)).targets.dtype == torch.int64
    assert as_records((X.astype(np.int64), Y)).inputs.dtype == torch.int64
    assert as_records((torch.tensor(X), torch.tensor(Y))).inputs.dtype == torch.float32


def test_views_that_torch_cannot_share():
    frozen = X.copy()
    frozen.setflags(write=False)
    for view in (frozen, X[::-1], X.T.copy().T):
        assert as_records((view, Y)).inputs.tolist() == view.tolist()


def test_paths_of_torch_datasets():
    tensors = TensorDataset(torch.tensor(X), torch.tensor(Y))
    assert isinstance(as_records(tensors), Records)
    part = as_records(Subset(tensors, [3, 1]))
    assert part.take(np.array([1]))[0].tolist() == [X[1].tolist()]
    assert as_records(part) is part


def with_value(row, column, value):
    x = X.copy()
    x[row, column] = value
    return x


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Lengthless(Dataset):
    def __getitem__(self, i):
        return X[i], 1


class Single(Pairs):
    def __getitem__(self, i):
        return X[i]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((with_value(2, 1, np.nan), Y), ["row=2", "column=1", "nan"]),
        ((with_value(3, 0, np.inf), Y), ["row=3", "column=0", "inf"]),
        ((with_value(1, 0, 1e300), Y), ["row=1", "column=0"]),
        ((X, Y[:3]), ["same length", "4", "3"]),
        ((X[:0], Y[:0]), ["at least one record"]),
        ((X, np.float64(1)), ["row per record"]),
        ((X.astype(str), Y), ["array of numbers"]),
        ((X, Y, Y), ["pair"]),
        ((X, np.array([0, 1, np.nan, 1])), ["targets must be finite", "row=2"]),
        ("file.csv", ["str"]),
        (Stream(), ["by index"]),
        (Lengthless(), ["length"]),
    ],
)
def test_bad_data_is_named(data, words):
    with np.errstate(over="ignore"), pytest.raises(InputError) as caught:
        as_records(data)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("others", "one"), [(1, 0.5), (1, True), (1, 2**63), (np.uint8(1), 1), (torch.tensor(1), torch.tensor(0.5))]
)
def test_no_number_of_a_list_changes_the_type_of_another(others, one):
    for numbers in ([others, others, one], [one, others, others]):
        rows = [[number, number] for number in numbers]
        for data in ((rows, [0, 1, 0]), (np.ones((3, 2)), numbers), {"a": rows}):
            with pytest.raises(InputError, match=r"of one type; .*give an array of a declared type"):
                as_records(data)
    as_records(([[others, others]], [others]))


def test_a_dataset_is_checked_when_drawn():
    class Broken(Pairs):
        def __getitem__(self, i):
            return with_value(2, 1, np.nan)[i], 0

    records = as_records(Broken())
    records.take(np.array([0, 1]))
    with pytest.raises(InputError, match="row=2, column=1"):
        records.take(np.array([3, 2]))


def test_records_may_be_single_tensors():
    """Which only a loss of (model, batch) can use; one of (outputs, targets) says so."""
    for data in (Single(), TensorDataset(torch.from_numpy(X))):
        records = as_records(data)
        assert torch.equal(
            torch.as_tensor(X[[2, 0]]).float(), torch.as_tensor(leaves(records.take(np.array([2, 0])))[0]).float()
        )
    objective = Objective.of(nn.Linear(2, 1), nn.MSELoss(reduction="none"))
    with pytest.raises(InputError, match="pairs"):
        objective.losses(objective.layout.read(objective.module), torch.ones(3, 2))


@pytest.mark.parametrize("indices", [np.array([4]), np.array([-1]), np.array([0.5]), np.array([[0]])])
def test_indices_must_lie_inside(indices):
    for records in (as_records((X, Y)), as_records(Pairs())):
        with pytest.raises(InputError, match="indices"):
            records.take(indices)


def test_what_is_hidden_by_a_mask_is_not_read():
    hidden = np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)
    labels = np.ma.masked_array([0, 1, 0], mask=[1, 0, 0])
    for data in ((hidden, np.zeros(3)), (list(hidden), np.zeros(3)), (np.eye(3), labels), {"x": hidden}):
        with pytest.raises(InputError, match="must not be hidden by a mask"):
            as_records(data)
    assert len(as_records((np.ma.masked_array(np.eye(3)), np.zeros(3)))) == 3


@pytest.mark.parametrize(
    ("made", "record"),
    [
        (lambda data: Subset(data, [0, 1, 2, 0]), 0),
        (lambda data: Subset(data, [2, 0, -4]), 0),
        (lambda data: ConcatDataset([data, data]), 0),
        (lambda data: ConcatDataset([Subset(data, [3, 1]), Subset(data, [0, 1])]), 1),
        (lambda data: Subset(ConcatDataset([data, Pairs()]), [7, 1, 2, 7]), 3),
        (lambda data: Named(data, [0, 1, 1]), 1),
        (lambda data: StackDataset(Subset(data, [3, 2, 3]), Subset(data, [1, 0, 1])), 0),
        (lambda data: StackDataset(x=ConcatDataset([data, data])), 0),
        (lambda data: 2 * [data[i] for i in range(4)], 0),
        (lambda data: Subset(tuple(data[i] for i in (3, 2)), [1, 0, 1]), 1),
    ],
)
def test_a_record_that_is_there_twice_is_found(made, record):
    with pytest.raises(InputError, match=f"a record must be in a dataset once.*record={record};"):
        need_each_once(made(Pairs()))


@pytest.mark.parametrize(
    "made",
    [
        lambda data: data,
        lambda data: Subset(data, [3, 0, 1]),
        lambda data: ConcatDataset([data, Pairs()]),
        lambda data: Subset(ConcatDataset([data, Pairs()]), [0, 4, 1, 5]),
        lambda data: StackDataset(Subset(data, [0, 0, 1]), Subset(data, [1, 0, 1])),
        lambda data: [data[i % 4] for i in range(9)],
        lambda _: ["yes", "no", "yes", 1, 1.0, 1],
    ],
)
def test_records_that_are_there_once_are_taken(made):
    need_each_once(made(Pairs()))
