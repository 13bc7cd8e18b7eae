"""The step itself: draws in their order, threads as the run began."""

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from conftest import make_problem
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency
from dpsrm.core.secret import Streams
from dpsrm.data import DatasetRecords, ImageFolder, Records
from dpsrm.gradients import LinearEngine, Objective, binary_loss, multiclass_loss
from dpsrm.methods import Agd, Srm
from dpsrm.runs.book import MemoryBook
from dpsrm.training import Performance, Privacy, Settings, Step, Training, resume, summing, train
from dpsrm.training.prepare import prepare


def a_step(adjacency=Adjacency.REPLACE_ONE, source=lambda *records: Records(*records), method=None, **training):
    objective, records = make_problem("mlp")
    settings = Settings(
        privacy=Privacy(epsilon=9.0, delta=1e-4, accountant="rdp", adjacency=adjacency),
        method=method or Srm(),
        training=Training(**{"batch": 10, "steps": 5, **training}),
        seed=3,
    )
    prepared = prepare(objective.module, objective.loss, source(*records(60)), settings, Streams.seeded(3))
    return Step(prepared, MemoryBook(prepared.plan.header(private_randomness=False)))


def test_drawing_again_or_ahead_gives_the_same_records():
    looking, going = a_step(first_batch=30), a_step(first_batch=30)
    ahead = [looking.draw(i) for i in range(5)]
    for drawn in ahead:
        assert going.draw().indices.tolist() == drawn.indices.tolist()
        assert going.draw().sampling == drawn.sampling
        going()
        looking(drawn)
    assert going.done
    assert torch.equal(going.result(), looking.result())


def test_releases_are_made_in_their_order():
    step = a_step()
    first, second = step.draw(), step.draw(1)
    with pytest.raises(InputError, match="order"):
        step(second)
    step(first)
    with pytest.raises(InputError, match="order"):
        step(first)
    step(second)


def test_a_resumed_run_uses_the_threads_it_began_with(tmp_path):
    seen = []

    def stop(progress):
        seen.append(torch.get_num_threads())
        if progress.step == 3:
            raise KeyboardInterrupt

    settings = Settings(
        privacy=Privacy(epsilon=9.0, delta=1e-4, accountant="rdp"),
        training=Training(batch=10, steps=5),
        performance=Performance(threads=None, checkpoint_steps=1),
    )
    before = torch.get_num_threads()
    big = torch.nn.Sequential(torch.nn.Linear(6, 2000), torch.nn.Tanh(), torch.nn.Linear(2000, 3))
    data = (torch.randn(60, 6), torch.randint(3, (60,)))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    try:
        torch.set_num_threads(2)
        with pytest.raises(KeyboardInterrupt):
            train(big, loss, data, settings, out=tmp_path / "run", callbacks=[stop])
        torch.set_num_threads(1)
        resume(tmp_path / "run", big, loss, data, callbacks=[lambda _: seen.append(torch.get_num_threads())])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert seen == [2] * 5


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_engine_knows_whether_neighbours_leave_the_others_in_their_places(adjacency):
    step = a_step(adjacency=adjacency)
    assert step.engine.steady == (adjacency is Adjacency.REPLACE_ONE)
    while not step.done:
        step()
    for collate in (None, default_collate):
        step = a_step(adjacency, lambda *records, c=collate: DatasetRecords(TensorDataset(*records), c))
        assert step.engine.steady == (adjacency is Adjacency.REPLACE_ONE and collate is None)


def test_a_replaced_image_moves_others_and_the_run_knows_it(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a/0.png", "a/1.png", "b/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.new("L", (2, 2), int(name[2])).save(tmp_path / name)
    before = ImageFolder(tmp_path, size=(2, 2), channels=1)
    (tmp_path / "a" / "0.png").rename(tmp_path / "b" / "4.png")
    after = ImageFolder(tmp_path, size=(2, 2), channels=1)
    assert before.files[1] == after.files[0]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    settings = Settings(privacy=Privacy(epsilon=9.0, delta=1e-2), training=Training(batch=2, steps=2), seed=3)
    prepared = prepare(model, multiclass_loss, after, settings, Streams.seeded(3))
    assert prepared.plan.spending.adjacency is Adjacency.REPLACE_ONE
    assert not prepared.steady


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_scores_and_gathered_sums_know_it_too(monkeypatch, adjacency):
    seen, real = [], summing.clipped_losses
    told = lambda *args, **options: seen.append(options["steady"]) or real(*args, **options)  # noqa: E731
    monkeypatch.setattr(summing, "clipped_losses", told)
    step = a_step(adjacency, method=Agd(), batch=None, output="last")
    while not step.done and len(seen) < 2:
        step()
    assert seen == [adjacency is Adjacency.REPLACE_ONE] * 2
    objective = Objective.of(torch.nn.Linear(3, 1), binary_loss)
    records = DatasetRecords(TensorDataset(torch.ones(5, 3), torch.ones(5)))
    for steady in (True, False):
        engine = LinearEngine(objective, population=5, steady=steady)
        gathered = summing.summer(engine, objective, records, Streams.seeded(1), steady=steady)
        assert (gathered._engine.population == 5) == steady
