"""Attacks 2–4 through `train`: what treats records together moves a release by no more than charged, or is refused."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dpsrm.cli.commands import app
from dpsrm.core.errors import DpsrmError, IsolationError
from dpsrm.core.events import Adjacency
from dpsrm.core.isolation import Isolation
from dpsrm.gradients.features import freeze_features
from dpsrm.mechanisms import airlock
from dpsrm.methods import Agd, Sgd
from dpsrm.runs import verify
from dpsrm.training import Performance, Privacy, Settings, Training, train
from gradients.ghost_cases import losses
from gradients.isolation_cases import CASES, centred, linear
from gradients.test_isolation import EQUAL, REFUSED
from training.attack_models import ATTACKS

N, RATE, CLIP = 6, 0.5, 0.05
WAYS_OUT = ("rewrite the module", 'performance.engine = "loop"', 'privacy.isolation = "checked"')
NO_BATCHING_RULE = {("functional", "balanced softmax")}
"""`torch.func.grad` inside vmap has no one_hot: refused there, as tests/gradients/test_isolation.py says too."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "isolation.md"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Double(nn.Module):
    """A module in float64, whatever its inputs: differences of θ then show differences of sums to ten digits."""

    def __init__(self, module):
        """Keep the module."""
        super().__init__()
        self.module = module.double()

    def forward(self, x):
        """Run it on float64."""
        return self.module(x.double() if x.is_floating_point() else x)


def case(name):
    """A case's module, always from the same start, its loss, inputs and targets."""
    torch.manual_seed(3)
    make, loss, inputs = CASES[name]
    return Double(make()), loss, inputs.clone(), 3 * torch.randn(N, generator=torch.Generator().manual_seed(1))


def replaced(inputs, targets, who):
    """The same records with another one at place `who`."""
    inputs, targets = inputs.clone(), targets.clone()
    inputs[who] = 50 * inputs[who] if inputs.is_floating_point() else torch.tensor([6, 0, 0, 0, 0])
    targets[who] = -100.0
    return inputs, targets


def settings(engine, *, method=None, isolation=Isolation.ALONE):
    """One release over all records; its noise is the same in every run."""
    return Settings(
        privacy=Privacy(epsilon=50.0, delta=1e-5, noise_multiplier=3.0, accountant="rdp", isolation=isolation),
        method=Sgd(max_grad_norm=CLIP) if method is None else method,
        training=Training(batch=N, steps=1, learning_rate=RATE, output="last"),
        performance=Performance(engine=engine, checkpoint_seconds=0),
        seed=3,
    )


def trained(name, *, path, who=None, engine="auto"):
    """θ after one release, on the case's records or on a neighbour's."""
    module, loss, inputs, targets = case(name)
    data = (inputs, targets) if who is None else replaced(inputs, targets, who)
    train(module, loss, data, settings(engine), out=path)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def released(module, loss, data, *, path, engine):
    """θ after one release, from the same start."""
    train(module, loss, data, settings(engine), out=path)
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("engine", ["auto", "functional", "loop"])
@pytest.mark.parametrize("name", ATTACKS)
def test_replacing_a_record_moves_a_release_by_no_more_than_is_charged(name, engine, tmp_path):
    """The noise cancels: what is left of two θ is the difference of two clipped sums."""
    (make, loss, neighbours), found = ATTACKS[name], []
    for index, data in enumerate(neighbours(N)):
        torch.manual_seed(3)
        options = {"path": tmp_path / str(index), "engine": engine}
        if (engine, name) in NO_BATCHING_RULE:
            with pytest.raises(IsolationError, match="Three ways out"):
                released(Double(make()), loss, data, **options)
            return
        found.append(released(Double(make()), loss, data, **options))
    assert found[0].dtype == torch.float64
    moved = float((found[1] - found[0]).norm()) * N / RATE
    assert moved <= 2 * CLIP * (1 + 1e-9)
    nothing = name == "in-batch negatives"
    assert moved == 0 if nothing else moved > 0.5 * CLIP, (
        "alone, there are no negatives; in all others the record counts"
    )


@pytest.mark.parametrize("engine", ["auto", "functional"])
@pytest.mark.parametrize("name", ["value-dependent branch", "packed LSTM"])
def test_what_cannot_run_alone_is_refused_and_says_what_to_do(name, engine, tmp_path):
    with pytest.raises(IsolationError) as found:
        trained(name, path=tmp_path / "run", engine=engine)
    assert all(way_out in str(found.value) for way_out in WAYS_OUT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["value-dependent branch", "packed LSTM"])
def test_the_loop_trains_what_vmap_cannot(name, tmp_path):
    theta = trained(name, path=tmp_path / "run", engine="loop")
    other = trained(name, path=tmp_path / "other", who=0, engine="loop")
    assert 0 < float((other - theta).norm()) * N / RATE <= 2 * CLIP * (1 + 1e-9)
    assert verify(tmp_path / "run").facts.closing.isolation is Isolation.ALONE


def guarded(m, x):
    """A guard against NaN: a branch on values that treats every example by itself."""
    return m.w(x) if bool(torch.isfinite(x).all()) else m.w(torch.nan_to_num(x))


def test_checked_trains_a_harmless_branch_and_every_paper_says_so(tmp_path):
    checked = settings("auto", isolation=Isolation.CHECKED)
    run = train(linear(guarded), losses, (torch.randn(N, 4), torch.randn(N)), checked, out=tmp_path / "run")
    words = "on the operator's word, that module and loss treat every example by itself"
    assert f"**An assumption.** The guarantee assumes, {words}" in run.folder.certificate.read_text()
    result = verify(run.folder.path)
    assert result.ok
    assert result.facts.closing.isolation is Isolation.CHECKED
    shown = CliRunner().invoke(app, ["verify", str(run.folder.path)])
    assert words in " ".join(shown.output.split())
    assert '"isolation":"checked"' in run.folder.ledger.read_text().replace(" ", "")


def test_without_checked_no_paper_speaks_of_a_word(tmp_path):
    trained("flip", path=tmp_path / "run")
    certificate = (tmp_path / "run" / "certificate.md").read_text()
    assert "Every example was evaluated alone" in certificate
    assert "assum" not in certificate


@pytest.mark.parametrize("name", ["centred by the batch", "balanced softmax"])
def test_checked_releases_nothing_of_what_mixes(name, tmp_path):
    module, loss, inputs, targets = case(name)
    with pytest.raises(DpsrmError, match="alone"):
        train(module, loss, (inputs, targets), settings("auto", isolation=Isolation.CHECKED), out=tmp_path / "run")
    assert verify(tmp_path / "run").facts.spending.releases == 0


@pytest.mark.parametrize("engine", ["auto", "functional", "loop"])
def test_a_record_moves_each_candidates_score_by_at_most_the_clip(engine, tmp_path, monkeypatch):
    """Attack 4: DP-AGD's scores of a module that centres its batch moved by 668 where 6 was claimed."""
    told, real = [], airlock.noisy_min

    def spy(scores, **options):
        told.append(scores)
        return real(scores, **options)

    monkeypatch.setattr(airlock, "noisy_min", spy)
    inputs, targets = torch.randn(N, 4, generator=torch.Generator().manual_seed(2)), torch.zeros(N)
    agd, first = settings(engine, method=Agd(max_grad_norm=CLIP, max_loss=3.0, candidates=4)), []
    for name, data in (("a", (inputs, targets)), ("b", replaced(inputs, targets, 0))):
        torch.manual_seed(4)
        told.clear()
        train(half_centred(), losses, data, agd, out=tmp_path / name)
        first.append(told[0])
    assert first[0].spread(Adjacency.REPLACE_ONE) == 6.0
    moved = [abs(x - y) for x, y in zip(first[0].secret, first[1].secret, strict=True)]
    assert 0 < max(moved) <= 3.0


def half_centred():
    """A module that takes half of the batch's mean away: alone, half of each example is left."""
    return centred(lambda x: x - x.mean(0) / 2)


def test_replacing_a_record_changes_one_row_of_frozen_features():
    """Attack 4: a trunk that mixes its batch changed all 100 rows."""
    torch.manual_seed(0)
    trunk, inputs = half_centred().requires_grad_(False), torch.randn(100, 4)
    other = inputs.clone()
    other[7] = 100.0
    before, after = freeze_features(trunk, inputs), freeze_features(trunk, other)
    assert (before != after).any(1).nonzero().flatten().tolist() == [7]
    together = trunk(inputs) != trunk(other)
    assert bool(together.any(1).all()), "run together, every row would change"


BEGIN, END = "<!-- made by tests/training/test_attacks.py: begin -->", "<!-- end -->"


def table():
    """The page's table, from the cases and what tests/gradients/test_isolation.py finds of them."""
    lines = ["| module or loss | run on each example alone by vmap |", "|---|---|"]
    for name in CASES:
        assert (name in EQUAL) != (name in REFUSED)
        lines.append(f"| {name} | {'equal to the loop oracle' if name in EQUAL else 'refused'} |")
    return "\n".join(lines)


def test_the_page_says_what_the_tests_find():
    found = re.search(f"{re.escape(BEGIN)}\n(.*?)\n{re.escape(END)}", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(), f"put this into {PAGE.name}:\n{table()}"


def test_the_page_gives_the_ways_out():
    text = " ".join(PAGE.read_text().split())
    assert all(word in text for word in ('performance.engine = "loop"', "ewrite", 'privacy.isolation = "checked"'))
