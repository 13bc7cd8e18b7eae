"""Attack 1: modules and losses that write down what they see. Replacing a record changes no published byte but θ's."""

import copy
import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dpsrm.core.errors import DpsrmError
from dpsrm.methods import Agd, Sgd, Srm
from dpsrm.runs import folder, verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, train
from training.attack_models import WRITERS, loss_for, records, replaced_in

N, STEPS, RATE, CLIP = 4, 2, 0.5, 1.0
METHODS = {
    "srm": Srm(max_grad_norm=CLIP, max_diff_norm=CLIP / 2),
    "sgd": Sgd(max_grad_norm=CLIP),
    "agd": Agd(max_grad_norm=CLIP, candidates=2),
}
WAYS = ("auto", "functional", "loop", "checked")
TRAINED, REFUSED = "trained", "refused"
OUTCOMES = {
    "InstanceNorm1d with statistics": (REFUSED, REFUSED, TRAINED, TRAINED),
    "InstanceNorm2d with statistics": (REFUSED, REFUSED, TRAINED, TRAINED),
    "EMA buffer": (REFUSED, REFUSED, TRAINED, REFUSED),
    "exchanged buffer": (TRAINED, TRAINED, TRAINED, REFUSED),
    "frozen parameter": (REFUSED, REFUSED, TRAINED, REFUSED),
    "frozen parameter's data": (REFUSED, REFUSED, TRAINED, REFUSED),
    "ActNorm": (REFUSED, REFUSED, TRAINED, REFUSED),
    "ActNorm with a branch": (REFUSED, REFUSED, TRAINED, REFUSED),
    "trained parameter's data": (REFUSED, REFUSED, TRAINED, REFUSED),
    "spectral norm": (TRAINED, TRAINED, TRAINED, REFUSED),
    "plain tensor": (REFUSED, REFUSED, TRAINED, REFUSED),
    "list": (TRAINED, TRAINED, TRAINED, REFUSED),
    "dict": (TRAINED, TRAINED, TRAINED, REFUSED),
    "attribute": (TRAINED, TRAINED, TRAINED, REFUSED),
    "number of calls": (TRAINED, REFUSED, TRAINED, TRAINED),
    "trained parameter halved": (TRAINED, TRAINED, TRAINED, TRAINED),
    "loss with a running buffer": (REFUSED, REFUSED, TRAINED, REFUSED),
}
"""What happens in each of `WAYS`, whatever the method; there is no third outcome."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Hundreds of runs: no waiting for the disk, and versions looked up once."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(folder, "versions", lambda: dict(VERSIONS))


VERSIONS = folder.versions()


def settings(way, method):
    """Two steps over all records, with noise so large that neighbours make DP-AGD choose alike."""
    privacy = {"epsilon": 50.0, "delta": 1e-5, "noise_multiplier": 20.0, "accountant": "rdp"}
    checked = way == "checked"
    return Settings(
        privacy=Privacy(**privacy, isolation="checked" if checked else "alone"),
        method=METHODS[method],
        training=Training(batch=N, steps=STEPS, learning_rate=RATE, output="last"),
        performance=Performance(engine="auto" if checked else way, checkpoint_seconds=0),
        seed=3,
    )


def inside(module):
    """Everything a module holds but its trained parameters: buffers, frozen parameters, attributes, hooks."""
    found = {}
    for name, child in module.named_modules():
        held = {k: v for k, v in vars(child).items() if k not in ("_parameters", "_modules", "_buffers")}
        found[name] = held, dict(child._buffers), {k: p for k, p in child._parameters.items() if not _trains(p)}
    return copy.deepcopy(found)


def _trains(parameter):
    return parameter is not None and parameter.requires_grad


def same(x, y):
    """Whether two trees of attributes are equal, tensors by their bytes."""
    if isinstance(x, Tensor):
        return isinstance(y, Tensor) and x.dtype == y.dtype and torch.equal(x, y)
    if isinstance(x, dict):
        return isinstance(y, dict) and list(x) == list(y) and all(same(x[k], y[k]) for k in x)
    if isinstance(x, (list, tuple)):
        return type(x) is type(y) and len(x) == len(y) and all(map(same, x, y))
    return type(x) is type(y) and (x == y or not isinstance(x, (int, float, str, bool, set)))


@dataclass
class Tried:
    """One run: what became of it, its folder, and the trained parameters at entry and at the end."""

    outcome: str
    path: Path
    entry: dict[str, Tensor]
    theta: Tensor
    words: str = ""


def attempt(name, way, method, *, data, path):
    """Train a case once; its module and loss must be afterwards what they were, but for θ."""
    torch.manual_seed(5)
    module, loss = WRITERS[name](), loss_for(name)
    trained = [n for n, p in module.named_parameters() if p.requires_grad]
    entry = {n: value.clone() for n, value in module.state_dict().items() if n not in trained}
    objects = [module, *([loss] if isinstance(loss, nn.Module) else [])]
    before = [inside(each) for each in objects]
    outcome, words = TRAINED, ""
    try:
        train(module, loss, data, settings(way, method), out=path)
    except DpsrmError as error:
        outcome, words = REFUSED, str(error)
    assert all(same(old, inside(each)) for old, each in zip(before, objects, strict=True)), "the user's objects changed"
    theta = torch.cat([p.detach().flatten() for n, p in module.named_parameters() if n in trained])
    return Tried(outcome, path, entry, theta, words)


def published(path):
    """Every file outside of private/, by name."""
    assert not [each for each in path.iterdir() if each.is_dir() and each.name != "private"]
    return {each.name: each.read_bytes() for each in path.iterdir() if each.is_file()}


def need_same_words(one, two):
    """Config and environment to the byte; the certificate but for the model's digest."""
    for name in ("config.toml", "environment.json"):
        assert one[name] == two[name]
    digest = re.compile(rb"(\| model\.safetensors \| `)[0-9a-f]{64}`")
    certificates = [digest.sub(rb"\1", files["certificate.md"]) for files in (one, two)]
    assert certificates[0] == certificates[1]
    assert one["certificate.md"].count(b"model.safetensors") == 1


def need_same_ledger(one, two):
    """Header and charges to the byte; the closing line but for the digests of model and certificate, and its hash."""
    first, second = (files["ledger.jsonl"].splitlines() for files in (one, two))
    assert first[:-1] == second[:-1]
    closings = []
    for line in (first[-1], second[-1]):
        closing = json.loads(line)
        assert closing["body"]["kind"] == "close"
        for name in ("model.safetensors", "certificate.md"):
            closing["body"]["files"].pop(name)
        closing.pop("hash")
        closings.append(closing)
    assert closings[0] == closings[1]


def need_entry_state(tried):
    """In the model file, everything that is not trained is as it was at entry."""
    saved = load_file(tried.path / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in tried.entry.items())


def most(method):
    """How far neighbours' θ can be apart after `STEPS` releases with the same noise, by the clips alone."""
    moved = RATE * 2 * CLIP / N
    if method == "sgd":
        return STEPS * moved
    if method == "srm":
        return STEPS * STEPS * 1.5 * moved
    if method == "agd":
        return STEPS * METHODS["agd"].reach * moved
    raise AssertionError(method)


def need_nothing_released(tried):
    """A refusal comes before any charge, and leaves no model."""
    if tried.path.exists():
        assert read_ledger(tried.path / "ledger.jsonl").spending.releases == 0
        assert not (tried.path / "model.safetensors").exists()


def test_every_case_has_its_outcomes():
    assert sorted(OUTCOMES) == sorted(WRITERS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRITERS)
def test_replacing_a_record_changes_nothing_published_but_theta(name, way, method, tmp_path):
    base = records(N)
    data = [base, replaced_in(base, 0), *([replaced_in(base, N - 1)] if method == "agd" else [])]
    runs = [attempt(name, way, method, data=each, path=tmp_path / str(i)) for i, each in enumerate(data)]
    expected = OUTCOMES[name][WAYS.index(way)]
    assert [run.outcome for run in runs] == [expected] * len(runs), runs[0].words
    if expected == REFUSED:
        for run in runs:
            need_nothing_released(run)
        return
    first = published(runs[0].path)
    need_entry_state(runs[0])
    for run in runs[1:]:
        other = published(run.path)
        assert sorted(other) == sorted(first)
        need_same_words(first, other)
        need_same_ledger(first, other)
        need_entry_state(run)
        moved = float((run.theta.double() - runs[0].theta.double()).norm())
        assert 0 < moved <= most(method) * (1 + 1e-5), "θ moves, by no more than the clips allow"
    assert verify(runs[0].path).ok


def test_a_notice_names_what_is_written_in_vain(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        attempt("ActNorm", "loop", "sgd", data=records(N), path=tmp_path / "run")
    (notice,) = [each.getMessage() for each in caplog.records if "discarded" in each.getMessage()]
    assert "0.started" in notice
    assert "0.shift" in notice
    assert "0.scale" not in notice
