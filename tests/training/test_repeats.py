"""A record that torch's own datasets give twice counts twice: refused, unless it is one person's both times."""

import pathlib

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from dpsrm import InputError, Privacy, Settings, Training, make_private, train
from dpsrm.data import ImageFolder, Records
from dpsrm.data.repeats import need_each_once
from dpsrm.gradients import binary_loss, squared_loss
from dpsrm.mechanisms import Airlock
from dpsrm.methods import Sgd
from dpsrm.runs import verify

N, COPIES = 30, 12
PROMISE = {"epsilon": 1.0, "delta": 1e-5}


def records(value=0.5):
    inputs = torch.full((N, 3), 0.1)
    inputs[0] = value
    targets = torch.full((N,), 0.5)
    targets[0] = 1.0 if value > 0 else -1.0
    return TensorDataset(inputs, targets)


def repeated(data):
    return Subset(data, [0] * COPIES + list(range(N)))


def trained(data, out, *, promise, **more):
    module = nn.Linear(3, 1)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    settings = Settings(
        privacy=promise, method=Sgd(max_grad_norm=0.1), training=Training(batch=len(data), steps=1), seed=0
    )
    return train(module, squared_loss, data, settings, out=out, **more)


def test_a_record_given_twice_would_move_a_sum_by_twice_its_bound(monkeypatch, tmp_path):
    """Measured without privacy's guard, so that the test says why it is there: 13 times the bound of one record."""
    seen = []
    release = Airlock._released

    def kept(airlock, total, *rest):
        seen.append((total.secret.clone(), total.bound))
        return release(airlock, total, *rest)

    monkeypatch.setattr(Airlock, "_released", kept)
    monkeypatch.setattr("dpsrm.training.prepare.need_each_once", lambda *_: None)
    for name, value in (("one", 0.5), ("other", -0.5)):
        trained(repeated(records(value)), tmp_path / name, promise=Privacy(**PROMISE))
        assert verify(tmp_path / name).ok
    (one, bound), (other, _) = seen
    assert float((one - other).norm()) > COPIES * bound


@pytest.mark.parametrize("made", [repeated, lambda data: ConcatDataset([data, data])])
def test_a_record_given_twice_is_refused_before_anything_is_charged(made, tmp_path):
    with pytest.raises(InputError, match="a record must be in a dataset once"):
        trained(made(records()), tmp_path / "run", promise=Privacy(**PROMISE))
    refused_in_a_loop(made(records()), tmp_path)


class Pictures(Dataset):
    """As torchvision's: records, what becomes of them, and perhaps where they were read."""

    def __init__(self, transform=None, root=None, part=0, start=0.5):
        self.data, self.labels = (torch.full((N, 3), start), torch.zeros(N)) if root else records().tensors
        self.transform, self.part = transform, part
        if root:
            self.root = root

    def __len__(self):
        return len(self.data)

    def __getitem__(self, at):
        return self.data[at], self.labels[at]


def flipped(part):
    """The same pictures, of the same tensors, with a transform."""
    other = Pictures(torch.flip, part=part.part)
    other.data, other.labels = part.data, part.labels
    return other


ONE, ROOT = Pictures(), str(pathlib.Path(__file__).parent)
WHOLE = records().tensors


@pytest.mark.parametrize(
    "made",
    [
        ConcatDataset([ONE, flipped(ONE)]),
        ConcatDataset([Subset(ONE, range(9)), Subset(flipped(ONE), range(8, N))]),
        ConcatDataset([Pictures(root=ROOT), Pictures(torch.flip, root=ROOT)]),
        ConcatDataset([TensorDataset(*WHOLE), TensorDataset(*WHOLE)]),
        ConcatDataset([TensorDataset(*(each[:9] for each in WHOLE)), TensorDataset(*(each[8:] for each in WHOLE))]),
        TensorDataset(*(each[:1].expand(N, *each.shape[1:]) for each in (*WHOLE, WHOLE[0]))),
    ],
)
def test_so_are_the_same_records_in_two_datasets(made, tmp_path):
    """To see each picture plain and flipped, for instance: measured, a sum moved by 4 where 2 was claimed."""
    refused_in_a_loop(made, tmp_path)


@pytest.mark.parametrize(
    "made",
    [
        ConcatDataset([Pictures(), Pictures()]),  # two loads of what may be other people's
        ConcatDataset([Pictures(root=ROOT), Pictures(root=ROOT, part=1)]),
        ConcatDataset([Pictures(root=ROOT), Pictures(root=ROOT, start=0.25)]),
        ConcatDataset([TensorDataset(*(each[:9] for each in WHOLE)), TensorDataset(*(each[9:] for each in WHOLE))]),
        ConcatDataset([TensorDataset(WHOLE[0][:9], WHOLE[1][:9]), TensorDataset(WHOLE[0][:9], WHOLE[1][9:18])]),
        TensorDataset(torch.zeros(1, 3).expand(N, 3), WHOLE[1], torch.zeros(N, 0)),
        TensorDataset(WHOLE[0].t().contiguous().t(), WHOLE[1], WHOLE[1][:, None]),
        TensorDataset(WHOLE[0][:1], WHOLE[1][:1], WHOLE[1][:1]),
    ],
)
def test_other_records_are_not_taken_for_the_same(made):
    need_each_once(made)


def test_so_is_an_object_that_a_list_has_twice(tmp_path):
    refused_in_a_loop([records()[0]] * COPIES + [records()[i] for i in range(N)], tmp_path)


def refused_in_a_loop(data, tmp_path):
    module = nn.Linear(3, 1)
    sgd, loader = torch.optim.SGD(module.parameters(), lr=0.1), DataLoader(data, batch_size=5)
    with pytest.raises(InputError, match="a record must be in a dataset once"):
        make_private(
            model=module,
            losses=nn.MSELoss(reduction="none"),
            optimizer=sgd,
            data_loader=loader,
            steps=1,
            out=tmp_path / "loop",
            **PROMISE,
        )
    assert not list(tmp_path.iterdir())


def test_without_privacy_or_for_one_person_records_may_be_repeated(tmp_path):
    trained(repeated(records()), tmp_path / "plain", promise=None)
    who = [0] * COPIES + list(range(N))
    promise = Privacy(rows_per_unit=2, **PROMISE)
    module, data = nn.Linear(3, 1), repeated(records())
    settings = Settings(privacy=promise, method=Sgd(max_grad_norm=0.1), training=Training(batch=5, steps=1), seed=0)
    train(module, squared_loss, data, settings, out=tmp_path / "people", unit=who)
    assert verify(tmp_path / "people").ok


def test_a_record_of_two_people_is_refused(tmp_path):
    """A sender's and a receiver's message, say: whoever is replaced, both their rows are others."""
    who = [*range(1, COPIES + 1), *range(N)]
    promise = Privacy(rows_per_unit=2, **PROMISE)
    with pytest.raises(InputError, match=r"a record must be one unit.s.*record=0;"):
        trained(repeated(records()), tmp_path / "people", promise=promise, unit=who)


def test_arrays_are_not_asked(tmp_path):
    """Equal numbers are no repetition: two records may be alike."""
    data = Records(torch.full((N, 3), 0.1), torch.zeros(N))
    trained(data, tmp_path / "run", promise=Privacy(**PROMISE))


def test_a_folder_with_links_to_one_image_is_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        image.new("L", (2, 2)).save(tmp_path / "pets" / name / "0.png")
    (tmp_path / "pets" / "cat" / "1.png").symlink_to(tmp_path / "pets" / "cat" / "0.png")
    pets = ImageFolder(tmp_path / "pets", size=(2, 2), channels=1)
    settings = Settings(privacy=Privacy(**PROMISE), training=Training(batch=1, steps=1))
    with pytest.raises(InputError, match="a record must be in a dataset once"):
        train(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)), binary_loss, pets, settings, out=tmp_path / "run")
