"""Datasets and collate functions: what they do for one record changes nothing of another."""

import random
from collections import namedtuple
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import dpsrm
from dpsrm.core.errors import InputError
from dpsrm.data import DatasetRecords, UnitRecords, Units, as_records
from dpsrm.data.apart import by_value, numbers_of_its_own, reading
from dpsrm.training import Privacy, Settings, Training, resume, train

EVERYONE = np.arange(6)
SOURCES = {
    "torch": lambda count: torch.rand(count).sum(),
    "numpy": lambda count: torch.tensor(np.random.rand(count).sum()),  # noqa: NPY002
    "random": lambda count: torch.tensor(sum(random.random() for _ in range(count))),
}


class Drawing(Dataset):
    """Draws as many numbers for a record as the record says, and gives their sum."""

    def __init__(self, counts, draw):
        self.counts, self.draw = counts, draw

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, at):
        return self.draw(self.counts[at]).float().reshape(1), at % 2


class Flipping(Dataset):
    """Rows with random signs."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at] * (torch.randint(2, (3,)) * 2 - 1), at % 2


@pytest.mark.parametrize("draw", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("own", [True, False])
def test_what_one_record_draws_changes_no_other(draw, own):
    """Also where the collate function draws."""
    counts, longer = [3, 1, 4, 1, 5, 9], [3, 1, 400, 1, 5, 9]
    if own:
        short, long = (DatasetRecords(Drawing(numbers, draw)) for numbers in (counts, longer))
    else:
        make = lambda records: (draw(records[0]).float().reshape(1, 1), torch.zeros(1))  # noqa: E731
        short, long = (DatasetRecords(numbers, make) for numbers in (counts, longer))
    first, second = (source.take(EVERYONE)[0] for source in (short, long))
    assert (first != second).any(1).tolist() == [False, False, True, False, False, False]
    assert torch.equal(short.take(np.array([5, 4]))[0], first[[5, 4]]), "nor does it matter who else is read"


@pytest.mark.parametrize("draw", SOURCES.values(), ids=SOURCES)
def test_every_reading_has_other_numbers_and_the_same_one_the_same(draw):
    records = DatasetRecords(Drawing([2] * 6, draw))
    found = []
    for seed in (1, 2, 1):
        with reading(seed):
            found.append(records.take(EVERYONE)[0])
    assert torch.equal(found[0], found[2])
    assert not (found[0] == found[1]).any()
    assert len(set(found[0].flatten().tolist())) == 6, "and every record"


def test_the_callers_generators_stay_where_they_were():
    def state():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

    before = state()
    for draw in SOURCES.values():
        DatasetRecords(Drawing([1, 2, 3], draw)).take(np.arange(3))
        assert state() == before
    with suppress(ZeroDivisionError), numbers_of_its_own() as start:
        start(0)
        raise ZeroDivisionError
    assert state() == before


class Filling:
    """A collate function, or a dataset, that writes every record into the same memory."""

    def __init__(self, rows, kind=lambda x: x):
        self.rows, self.kept, self.kind = rows, torch.zeros(1, 3), kind

    def __len__(self):
        return len(self.rows)

    def __call__(self, records):
        self.kept[0] = records[0]
        return self.kind(self.kept)

    def __getitem__(self, at):
        self.kept[0] = self.rows[at]
        return self.kind(self.kept[0])


Pair = namedtuple("Pair", "x y")


def test_memory_that_is_written_again_is_copied_first():
    rows = torch.arange(18.0).view(6, 3)
    for kind in (lambda x: x, lambda x: {"x": x, "y": x}, lambda x: (x, [x]), lambda x: Pair(x, x)):
        batch = DatasetRecords(list(rows), Filling(rows, kind)).take(EVERYONE)
        own = DatasetRecords(Filling(rows, kind)).take(EVERYONE)
        for found in (batch, own):
            for tensor in torch.utils._pytree.tree_leaves(found):
                assert torch.equal(tensor, rows)
    as_numpy = DatasetRecords(Filling(rows, lambda x: x.numpy())).take(EVERYONE)
    assert torch.equal(as_numpy, rows)
    assert by_value("word") == "word"
    assert by_value(b"x") == b"x"


class Consented(TensorDataset):
    """Leaves withdrawn records out, and blanks a column."""

    def __len__(self):
        return 4

    def __getitem__(self, at):
        x, y = super().__getitem__(2 * at)
        return x * torch.tensor([1.0, 0.0]), y


def test_a_tensor_dataset_with_a_will_of_its_own_is_asked():
    data = Consented(torch.ones(8, 2), torch.arange(8) % 2)
    for source in (as_records(data), dpsrm.training.loader.records_of(DataLoader(data, batch_size=2))):
        assert len(source) == 4
        assert source.take(np.arange(4))[0].tolist() == [[1.0, 0.0]] * 4
    assert isinstance(as_records(TensorDataset(torch.ones(8, 2), torch.arange(8) % 2)), dpsrm.data.Records)


class Remembering(Dataset):
    """Subtracts the mean of what it was asked for so far."""

    def __init__(self, rows):
        self.rows, self.seen = rows, []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        self.seen.append(self.rows[at])
        return self.rows[at] - torch.stack(self.seen).mean(0), at % 2


class OwnGenerator(Remembering):
    """Draws from a generator that all records share."""

    def __getitem__(self, at):
        self.seen = self.seen or torch.Generator().manual_seed(0)
        return self.rows[at] + torch.rand(3, generator=self.seen), at % 2


SETTINGS = Settings(
    privacy=Privacy(epsilon=3.0, delta=1e-5),
    training=Training(batch=4, steps=6, learning_rate=0.1),
    performance=dpsrm.Performance(checkpoint_steps=2),
    seed=0,
)
LOSS = dpsrm.multiclass_loss


@pytest.mark.parametrize("kind", [Remembering, OwnGenerator])
@pytest.mark.parametrize("module", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.Tanh())], ids=["linear", "net"])
def test_a_dataset_that_remembers_is_refused(tmp_path, kind, module):
    data = kind(torch.randn(20, 3))
    with pytest.raises(InputError, match=r"whatever it was asked for before.*generator of its own"):
        train(module, LOSS, data, SETTINGS, out=tmp_path / "run")
    with pytest.raises(InputError, match="whatever it was asked for before"):
        train(module, LOSS, data, SETTINGS, out=tmp_path / "run", unit=[i // 2 for i in range(20)])
    assert not (tmp_path / "run").exists()


class Stop(Exception):
    """Ends a process."""


def test_random_crops_are_resumed_to_the_same_bits(tmp_path):
    rows = torch.ones(20, 3)

    def parts():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 2)), LOSS, Flipping(rows)

    def stop(progress):
        if progress.step == 3:
            raise Stop

    whole = train(*parts(), SETTINGS, out=tmp_path / "whole")
    with pytest.raises(Stop):
        train(*parts(), SETTINGS, out=tmp_path / "run", callbacks=[stop])
    torch.rand(5)  # the generator of the new process is elsewhere
    resumed = resume(tmp_path / "run", *parts())
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (whole.folder.path / name).read_bytes() == (resumed.folder.path / name).read_bytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_ones_own_loop_reads_as_train_does(tmp_path, workers):
    """A release's numbers are those of its record, in worker processes, too."""
    records = DatasetRecords(Flipping(torch.ones(20, 3)))
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    private = dpsrm.make_private(
        model=model,
        losses=nn.CrossEntropyLoss(reduction="none"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records.dataset, batch_size=5, num_workers=workers),
        epochs=1,
        epsilon=3,
        delta=1e-5,
        method="sgd",
        seed=1,
        out=tmp_path / "loop",
    )
    for batch in private.data_loader:
        draw = private._run.step.draw()
        with reading(draw.seed):
            assert torch.equal(batch[0], records.take(draw.indices)[0])
        private.step(batch)
    training = Training(batch=5, epochs=1, learning_rate=0.1, optimizer="sgd", output="last")
    method = dpsrm.Sgd(max_grad_norm=1.0)
    settings = Settings(privacy=Privacy(epsilon=3.0, delta=1e-5), method=method, training=training, seed=1)
    train(other, nn.CrossEntropyLoss(reduction="none"), records.dataset, settings, out=tmp_path / "train")
    assert torch.equal(model.weight, other.weight)


def test_units_are_read_with_the_numbers_of_their_rows():
    records = DatasetRecords(Flipping(torch.ones(6, 3)))
    people = UnitRecords(records, Units.of([0, 0, 1, 1, 2, 2]), 2)
    with reading(9):
        assert torch.equal(people.take(np.arange(3)).rows[0].flatten(0, 1), records.take(EVERYONE)[0])
