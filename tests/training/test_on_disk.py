"""Training on records that lie on disk: the run that memory would give, read ahead or not, resumed or refused."""

import os
import threading
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import dpsrm
from dpsrm.core.errors import InputError, ResumeError
from dpsrm.data import MappedRecords
from dpsrm.gradients import binary_loss, multiclass_loss
from dpsrm.methods import method_class
from dpsrm.training import ahead as ahead_module
from dpsrm.training import step as step_module

N = 400


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", (x[:, 0] > 0).astype(np.uint8))
    return tmp_path


def arrays(files, mode="r"):
    return tuple(np.load(files / f"{name}.npy", mmap_mode=mode) for name in "xy")


def settings(method="srm", sampling="poisson", **performance):
    return dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=3.0, delta=1e-4, sampling=sampling),
        method=method_class(method)(),
        training=dpsrm.Training(batch=40, steps=12, learning_rate=0.3),
        performance=dpsrm.Performance(**{"checkpoint_steps": 5, **performance}),
        seed=7,
    )


def module(kind="linear"):
    torch.manual_seed(0)
    return torch.nn.Linear(4, 1) if kind == "linear" else torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )  # fmt: skip


def trained(data, out, chosen, kind="linear", **more):
    model = module(kind)
    dpsrm.train(model, binary_loss, data, chosen, out=out, **more)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("kind", ["linear", "net"])
@pytest.mark.parametrize(("method", "sampling"), [("srm", "poisson"), ("sgd", "wor"), ("disk", "poisson")])
def test_disk_memory_and_reading_ahead_agree(files, kind, method, sampling):
    chosen = partial(settings, method, sampling)
    memory = trained(tuple(np.array(a) for a in arrays(files)), files / "m", chosen(), kind)
    ahead = trained(arrays(files), files / "a", chosen(), kind)
    plain = trained(arrays(files), files / "p", chosen(prefetch=False), kind)
    assert torch.equal(ahead, plain)
    assert torch.allclose(ahead, memory, rtol=1e-6, atol=1e-7)
    if kind == "net":
        assert torch.equal(ahead, memory)


def test_records_are_read_by_the_other_thread_and_drawn_by_this_one(files, monkeypatch):
    threads = {"read": set(), "draw": set()}
    take, draw = MappedRecords.take, step_module.draw

    def seen_take(self, indices):
        threads["read"].add(threading.current_thread().name)
        return take(self, indices)

    def seen_draw(*args):
        threads["draw"].add(threading.current_thread().name)
        return draw(*args)

    monkeypatch.setattr("dpsrm.training.step.draw", seen_draw)
    monkeypatch.setattr(MappedRecords, "take", seen_take)
    trained(arrays(files), files / "run", settings())
    assert threads["draw"] == {"MainThread"}
    assert "dpsrm-read_0" in threads["read"]
    assert not [t for t in threading.enumerate() if t.name.startswith("dpsrm-read")], "the thread is let go"


@pytest.mark.parametrize("workers", [0, 2])
def test_ones_own_loop(files, workers):
    def loop(data, out, rows=None):
        model = module("net")
        loader = None if workers == 0 else torch.utils.data.DataLoader(rows, batch_size=40, num_workers=workers)
        private = dpsrm.make_private(
            model=model,
            losses=lambda model, batch: binary_loss(model(batch[0]), batch[1]),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            **({"data": data, "batch_size": 40} if loader is None else {"data_loader": loader}),
            epsilon=3.0,
            delta=1e-4,
            steps=8,
            seed=3,
            out=out,
        )
        for batch in private.data_loader:
            private.step(batch)
        private.finish()
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    memory = tuple(torch.from_numpy(np.array(a)) for a in arrays(files))
    rows = torch.utils.data.TensorDataset(*memory)
    assert torch.equal(loop(arrays(files), files / "a", rows), loop(memory, files / "b", rows))


def stopped_at(step, model):
    def stop(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return stop


def test_a_run_on_disk_is_resumed_to_the_same_end(files):
    whole = trained(arrays(files), files / "whole", settings())
    with pytest.raises(KeyboardInterrupt):
        trained(arrays(files), files / "run", settings(), callbacks=[stopped_at(8, None)])
    model = module()
    dpsrm.resume(files / "run", model, binary_loss, arrays(files))
    assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()).detach(), whole)


def test_changed_records_are_not_resumed(files):
    with pytest.raises(KeyboardInterrupt):
        trained(arrays(files), files / "run", settings(), callbacks=[stopped_at(8, None)])
    x = np.load(files / "x.npy", mmap_mode="r+")
    x[N - 1, 3] += 1e-3
    x.flush()
    with pytest.raises(ResumeError, match="data must be the same"):
        dpsrm.resume(files / "run", module(), binary_loss, arrays(files))


def test_records_that_change_during_the_run_stop_it(files):
    def write(progress):
        if progress.step == 4:
            np.load(files / "x.npy", mmap_mode="r+")[5] = 9.0

    with pytest.raises(InputError, match="was written to"):
        trained(arrays(files), files / "run", settings(), callbacks=[write])


@pytest.mark.parametrize(
    ("restored", "rule"), [(False, "data must be the same"), (True, "was made before, from another sum")]
)
def test_a_change_that_nobody_noticed_is_no_second_release(files, restored, rule):
    """Not every writer moves the file's time (docs/decisions/on-disk.md): the resume is refused, not the run."""
    before, time = (files / "x.npy").read_bytes(), (files / "x.npy").stat().st_mtime_ns

    def written(content):
        (files / "x.npy").write_bytes(content)
        os.utime(files / "x.npy", ns=(time, time))

    def write(progress):
        if progress.step == 6:
            written(before[:128] + (3 * np.ones((N, 4), dtype=np.float32)).tobytes())

    chosen = settings(prefetch=False)
    with pytest.raises(KeyboardInterrupt):
        trained(arrays(files), files / "run", chosen, callbacks=[write, stopped_at(8, None)])
    assert (files / "x.npy").read_bytes() != before
    if restored:
        written(before)
    with pytest.raises(ResumeError, match=rule):
        dpsrm.resume(files / "run", module(), binary_loss, arrays(files))


def test_labels_are_checked_before_anything_is_charged(files):
    y = np.load(files / "y.npy", mmap_mode="r+")
    y[300] = 3
    y.flush()
    with pytest.raises(InputError, match=r"labels must lie in 0 … 1: .*row=300"):
        trained(arrays(files), files / "run", settings())
    with pytest.raises(InputError, match=r"0 … 2: .*row=300"):
        dpsrm.train(torch.nn.Linear(4, 3), multiclass_loss, arrays(files), settings(), out=files / "run")
    assert not (files / "run").exists()


def test_the_reader_follows_a_run_that_went_back(files):
    """After load_state_dict the draw that was read ahead is of another release: it is drawn anew."""
    model = module("net")
    private = dpsrm.make_private(
        model=model,
        losses=lambda model, batch: binary_loss(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=arrays(files),
        batch_size=40,
        epsilon=3.0,
        delta=1e-4,
        steps=6,
        seed=3,
        out=files / "run",
    )
    with private:
        start, sizes = private.state_dict(), []
        ahead = ahead_module.ReadAhead(private._run)
        with ahead:
            first, _ = ahead()
            private.data_loader.pending = None
            for batch in private.data_loader:
                sizes.append(len(batch[1]))
                private.step(batch)
                if private.steps_made == 3:
                    break
            private.load_state_dict(start)
            again, batch = ahead()
        assert again.release == first.release == 0
        assert np.array_equal(again.indices, first.indices)
        assert len(batch[1]) == sizes[0]


def test_the_command_line_reads_parquet_a_draw_at_a_time(files, answer):
    x, y = (np.load(files / f"{name}.npy") for name in "xy")
    frame = pd.DataFrame(x, columns=list("abcd")).assign(ill=y)
    frame.to_parquet(files / "t.parquet")
    thetas = []
    for kept in ("true", "false"):
        out = files / f"run-{kept}"
        answer(
            "train", "--data", files / "t.parquet", "--target", "ill", "--epsilon", 2, "--delta", 1e-4, "--seed", 1,
            "--set", "training.steps=5", "--set", "training.batch=50", "--set", f"data.in_memory={kept}", "--out", out,
        )  # fmt: skip
        thetas.append(torch.cat([t.flatten() for t in load_file(out / "model.safetensors").values()]))
    assert torch.allclose(*thetas, rtol=1e-6, atol=1e-7)


def test_the_command_line_reads_npy_a_draw_at_a_time(files, answer):
    body = answer(
        "train", "--data", files / "x.npy", "--target", files / "y.npy", "--epsilon", 2, "--delta", 1e-4,
        "--set", "training.steps=5", "--set", "training.batch=50", "--out", files / "run",
    )  # fmt: skip
    assert body["n"] == N
    assert dpsrm.verify(files / "run").ok
    assert set(dpsrm.load_run(files / "run").predict(files / "x.npy").tolist()) <= {"0", "1"}


def test_the_command_line_knows_text_labels_again(files, answer, monkeypatch):
    """Two runs of one budget over the same files: the second knows the records, whatever was in memory before."""
    empty, fills = np.empty, iter(range(10**6))

    def filled(*args, **options):
        found = empty(*args, **options)
        if found.dtype == np.uint8:
            found.fill(next(fills) % 251)
        return found

    monkeypatch.setattr(np, "empty", filled)
    np.save(files / "y.npy", np.where(np.load(files / "y.npy"), "yes", "no"))
    common = (
        "train", "--data", files / "x.npy", "--target", files / "y.npy", "--classes", "no,yes", "--epsilon", 0.5,
        "--delta", 1e-5, "--set", "training.steps=5", "--set", "training.batch=50", "--budget", files / "budget",
    )  # fmt: skip
    answer("budget", "init", files / "budget", "--epsilon", 2, "--delta", 1e-4)
    for name in ("a", "b"):
        answer(*common, "--out", files / name)
        assert dpsrm.verify(files / name).ok


def test_an_image_folder_trains(files):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (files / "pets" / name).mkdir(parents=True)
        for k in range(20):
            image.new("L", (5, 5), 10 * k + (name == "dog")).save(files / "pets" / name / f"{k}.png")
    pets = dpsrm.data.ImageFolder(files / "pets", size=(4, 4), channels=1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    run = dpsrm.train(model, multiclass_loss, pets, settings(), out=files / "run")
    assert run.plan.n == 40
