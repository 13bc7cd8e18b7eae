"""`prove`: what holds is proved, what is broken is named, and the window opens for nobody else."""

import os
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import dpsrm
from dpsrm.audit import prove
from dpsrm.audit.cases import PROMISES, Trial, quick, trials
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, Spending
from dpsrm.core.secret import Streams
from dpsrm.gradients import Objective
from dpsrm.gradients.places import probes
from dpsrm.mechanisms import Airlock, airlock
from dpsrm.mechanisms.watched import WatchedAirlock
from dpsrm.runs.ledger import Header, Ledger
from dpsrm.training import step


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """No waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


TRIAL = Trial("mlp", "srm", "ghost", *PROMISES[0])


def test_there_are_200_proofs_of_every_method_sampling_and_engine():
    everything = set(trials())
    assert len(everything) >= 200
    assert set(quick()) <= everything


@pytest.mark.parametrize("trial", [TRIAL, quick()[3], quick()[7]], ids=str)
def test_the_library_is_proved(trial):
    proof = trial.prove()
    assert proof.ok, proof.findings
    assert 0.5 < proof.moved <= 1
    assert sum(proof.tried.values()) >= 10
    assert str(proof).startswith("held: ")
    assert "\n" not in str(proof)


def patched_draw(change):
    """The sampler with its batches changed."""
    real = step.draw
    return lambda sampling, stream: change(real(sampling, stream))


@pytest.mark.parametrize(
    ("where", "name", "bug", "words"),
    [
        (
            airlock,
            "gaussian_noise",
            lambda r: lambda std, size, s: r(std / 2, size, s),
            "of the claimed",
        ),
        (airlock, "gaussian_noise", lambda r: lambda std, n, s: r(std, n, np.random.default_rng(0)), "the same noise"),
        (step, "draw", lambda r: lambda sampling, s: np.concatenate([r(sampling, s)] * 2), "twice"),
        (step, "draw", lambda r: lambda sampling, s: np.arange(sampling.batch), "Poisson batches"),
    ],
    ids=["half the noise", "one noise for all", "drawn twice", "always the same"],
)
def test_a_bug_is_found_and_said(monkeypatch, where, name, bug, words):
    from dpsrm.audit import statistics

    statistics.meter.cache_clear()
    monkeypatch.setattr(where, name, bug(getattr(where, name)))
    proof = TRIAL.prove()
    statistics.meter.cache_clear()
    assert not proof.ok
    assert any(words in finding for finding in proof.findings), proof.findings


class Centre(nn.Module):
    """In-batch normalisation written by hand."""

    def forward(self, x):
        """Centre and scale by the batch."""
        return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1)


def own(layer, isolation="checked"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), layer, nn.Tanh(), nn.Linear(8, 3))
    data = torch.randn(60, 6), torch.randint(0, 3, (60,))
    settings = dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=4.0, delta=1e-3, isolation=isolation, accountant="rdp"),
        training=dpsrm.Training(batch=16, steps=6),
    )
    return model, dpsrm.multiclass_loss, data, settings


def test_a_layer_that_mixes_examples_is_named():
    proof = prove(*own(Centre()))
    assert not proof.ok
    assert proof.findings[0].startswith("1 (Centre) treats the examples of a batch together")
    assert proof.seconds < 30


def test_without_it_the_same_model_is_proved_and_left_as_it_is():
    model, *rest = own(nn.LayerNorm(8))
    before = [p.clone() for p in model.parameters()]
    assert prove(model, *rest, rounds=1).ok
    assert all(map(torch.equal, before, model.parameters()))


def test_alone_the_layer_sees_no_batch():
    assert prove(*own(Deviations(), isolation="alone"), rounds=1).ok


class Deviations(nn.Module):
    """Centred by half the batch's mean: alone, half of each example is left."""

    def forward(self, x):
        """Take half of the mean away."""
        return x - x.mean(0) / 2


def test_a_private_run_cannot_be_watched(tmp_path):
    header = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="pld", private_randomness=True)
    nothing = Spending.of([], adjacency=Adjacency.REPLACE_ONE)
    with Ledger(tmp_path / "ledger.jsonl", header) as ledger:
        door = Airlock(ledger, planned=nothing, epsilon_of=lambda _: 0.0, noise=Streams.secure().noise)
        with pytest.raises(InputError, match="only a run that is not private can be watched"):
            WatchedAirlock(door)


def test_nothing_to_prove_without_privacy():
    with pytest.raises(InputError, match="nothing to prove"):
        prove(nn.Linear(2, 1), dpsrm.binary_loss, (torch.eye(2), torch.ones(2)), dpsrm.Settings(privacy=None))


def test_the_command_proves_a_users_file(tmp_path, dpsrm):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        import torch, dpsrm
        from torch import nn
        class InBatch(nn.Module):
            def forward(self, x):
                return x - x.mean(0)
        def setup():
            torch.manual_seed(0)
            return {
                "model": nn.Sequential(nn.Linear(4, 4), InBatch(), nn.Linear(4, 2)),
                "losses": dpsrm.multiclass_loss,
                "data": (torch.randn(40, 4), torch.randint(0, 2, (40,))),
                "settings": dpsrm.Settings(
                    privacy=dpsrm.Privacy(epsilon=2, delta=1e-3, isolation="checked", accountant="rdp"),
                    training=dpsrm.Training(batch=10, steps=4),
                ),
            }
        """)
    )
    told = dpsrm("prove", tmp_path / "mine.py", "--rounds", "1")
    assert told.code == 1
    assert "1 (InBatch) treats the examples of a batch together" in told.stdout
    missing = dpsrm("prove", tmp_path / "other.py")
    assert missing.code == 2
    assert "setup()" in missing.stderr


def test_what_places_are_tried_with_is_public():
    """Found by `prove`: the size of pieces was decided by a drawn example, so that a resumed run could differ."""
    objective = Objective.of(nn.Linear(3, 2), dpsrm.multiclass_loss)
    theta = objective.layout.read(objective.module)
    one, other = (torch.ones(3), torch.tensor(1)), (torch.full((3,), 7.0), torch.tensor(0))
    for a, b in zip(probes([theta], one), probes([theta + 1], other), strict=True):
        assert torch.equal(a[0][0], b[0][0])
        assert torch.equal(a[1][0], b[1][0])
        assert torch.equal(a[1][1], b[1][1])
