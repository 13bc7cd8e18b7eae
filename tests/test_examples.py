"""The examples run, at tiny size; the private loop is the plain one but for five lines; the guides tell the truth."""

import difflib
import runpy
from pathlib import Path

import pytest
import torch

import dpsrm
from dpsrm.gradients import LoopEngine, Objective, Part, Query
from dpsrm.gradients.ghost import GhostEngine
from dpsrm.gradients.ghost.look import look
from dpsrm.gradients.ghost.rules import RULES

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SIZES = {"plain_loop": 300, "private_loop": 1000, "own_method": 200, "own_layer_rule": 0, "transformer_dict": 60}
"""How many records each example makes up here."""


@pytest.fixture
def run_example(tmp_path, monkeypatch):
    """Run an example in an empty folder, from a fixed seed; what its variables hold at the end."""
    monkeypatch.chdir(tmp_path)
    rules = dict(RULES)

    def run(name, *, main="__main__"):
        monkeypatch.setenv("EXAMPLE_RECORDS", str(SIZES[name]))
        torch.manual_seed(0)
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=main)

    with torch.random.fork_rng():
        yield run
    RULES.clear()
    RULES.update(rules)


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SIZES)


def test_plain_loop(run_example, capsys):
    run_example("plain_loop")
    assert capsys.readouterr().out.count("of the test images") == 5


def test_private_loop(run_example, tmp_path):
    private = run_example("private_loop")["run"]
    assert private.epsilon <= 3
    assert dpsrm.verify(private.folder.path).facts.released == 20
    assert private.folder.path.resolve().parent == tmp_path / "runs"


def loop_sources():
    return [(EXAMPLES / f"{name}_loop.py").read_text().splitlines() for name in ("plain", "private")]


def test_five_lines_make_the_loop_private():
    plain, private = loop_sources()
    codes = difflib.SequenceMatcher(a=plain, b=private, autojunk=False).get_opcodes()
    assert sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in codes if kind != "equal") <= 5
    assert 30 <= len(plain) <= 40


def test_own_method(run_example, capsys, tmp_path):
    run_example("own_method")
    assert "verified: True" in capsys.readouterr().out
    assert 'name = "look-ahead"' in (tmp_path / "runs/own-method/config.toml").read_text()


def test_own_layer_rule(run_example, capsys):
    """Its rule covers the layer, gives what the oracle gives, also for 0 and 1 examples, and keeps examples apart."""
    names = run_example("own_layer_rule")
    assert "rule and oracle differ by at most" in capsys.readouterr().out
    model = torch.nn.Sequential(names["Sine"](4, 5), names["Sine"](5, 3))
    objective = Objective.of(model, torch.nn.CrossEntropyLoss(reduction="none"))
    theta, inputs, labels = objective.layout.read(model), torch.randn(6, 4), torch.randint(3, (6,))
    assert look(objective, theta, (inputs[:1], labels[:1])).modules == ()
    query = Query(points=(theta,), parts=(Part(coefficients=(1.0,), clip=0.3),))
    for count in (0, 1, 6):
        batch = inputs[:count], labels[:count]
        ghost, oracle = GhostEngine(objective)(query, batch), LoopEngine(objective)(query, batch)
        torch.testing.assert_close(ghost.secret, oracle.secret, rtol=1e-5, atol=1e-6)


def test_transformer_with_dictionaries(run_example):
    names = run_example("transformer_dict")
    assert names["run"].epsilon <= 8
    assert set(names["batch"]) == {"input_ids", "attention_mask", "labels"}
    assert dpsrm.verify(names["run"].folder.path).ok
