"""A run writes into the folder that it holds, not into what lies in its place meanwhile."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dpsrm import InputError, Performance, make_private, verify

RECORDS = torch.ones(40, 3), torch.zeros(40)


def begun(out, epsilon, **more):
    model = nn.Linear(3, 1)
    return make_private(
        model=model,
        losses=lambda model, batch: model(batch[0]).squeeze(1) - batch[1],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=RECORDS,
        batch_size=10,
        steps=3,
        epsilon=epsilon,
        delta=1e-5,
        out=out,
        **more,
    )


def to_the_end(run):
    for batch in run.data_loader:
        run.step(batch)
    return run.finish()


@pytest.mark.parametrize("how", ["renamed", "elsewhere"])
def test_another_run_in_its_place_is_left_alone(tmp_path, monkeypatch, how):
    """The model of ε = 8 was written into the folder of ε = 0.1, said to cost 0.1, and that run's key destroyed."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    first = begun("run", 8.0)
    if how == "renamed":
        Path("run").rename("old")
    else:
        monkeypatch.chdir(tmp_path / "there")
    second = begun("run", 0.1)
    before = sorted(Path("run").rglob("*"))
    with pytest.raises(InputError, match="must stay where it is"):
        to_the_end(first)
    assert sorted(Path("run").rglob("*")) == before
    assert to_the_end(second).epsilon <= 0.1
    assert verify("run").ok
    if how == "renamed":
        Path("run").rename("new")
        Path("old").rename("run")
    else:
        monkeypatch.chdir(tmp_path / "here")
    assert 0.1 < first.finish().epsilon <= 8.0
    assert verify("run").ok
    assert not Path("run/private/keys.json").exists()


def test_no_checkpoint_is_written_there_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = begun("run", 8.0, performance=Performance(checkpoint_steps=1))
    Path("run").rename("old")
    batches = iter(first.data_loader)
    with pytest.raises(InputError, match="must stay where it is"):
        first.step(next(batches))
    Path("old").rename("run")
    for batch in batches:
        first.step(batch)
    assert verify(first.finish().folder.path).ok
