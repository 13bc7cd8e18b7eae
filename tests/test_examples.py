"""The examples run, at tiny size; the private loop is the plain one but for five lines; the guides tell the truth."""

import difflib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dpsrm
from dpsrm.gradients import LoopEngine, Objective, Part, Query
from dpsrm.gradients.ghost import GhostEngine
from dpsrm.gradients.ghost.look import look
from dpsrm.gradients.ghost.rules import RULES
from dpsrm.methods import Sgd
from dpsrm.training import make_plan
from packages import environment

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SIZES = {"plain_loop": 300, "private_loop": 500, "own_method": 200, "own_layer_rule": 0, "transformer_dict": 60}
SIZES |= dict.fromkeys(("transformers_classifier", "transformers_lora", "transformers_gpt2", "transformers_vit"), 60)
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
    assert dpsrm.verify(private.folder.path).facts.released == 10
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
    assert not look(objective, theta, (inputs[:1], labels[:1])).reason
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


@pytest.mark.parametrize("name", ["classifier", "lora", "gpt2", "vit"])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_models_of_transformers(run_example, name, caplog):
    """Natively: nothing is said about layers that have no rule."""
    pytest.importorskip("peft", reason="pip install 'dpsrm[hf]'")
    names = run_example(f"transformers_{name}")
    assert names["run"].epsilon <= 8
    assert dpsrm.verify(names["run"].folder.path).ok
    assert "no rule" not in caplog.text


def test_text(tmp_path):
    """A byte-level language model of docstrings, in full and by LoRA, private and not, at tiny size."""
    pytest.importorskip("peft", reason="pip install 'dpsrm[hf]'")
    small = ["--records", 300, "--batch", 20, "--steps", 2, "--public-steps", 1, "--out", tmp_path, "--seed", 1]
    command = [sys.executable, EXAMPLES / "text" / "train.py", *small]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(r["way"], r["asked"]) for r in rows[1:]] == [
        (way, asked) for way in ("scratch", "full", "lora") for asked in (8.0, "none")
    ]
    assert all(0 < r["epsilon"] <= 8 for r in rows[1::2])
    assert all(1 < r["bits_per_byte"] < 12 for r in rows)
    assert rows[5]["parameters"] < rows[1]["parameters"]


def test_the_table_of_texts_in_the_guide():
    page = (ROOT / "docs" / "transformers.md").read_text()
    rows = [json.loads(line) for line in (ROOT / "results" / "text.jsonl").read_text().splitlines()]
    assert f"<!-- text -->\n{text_table(rows)}\n<!-- end -->" in page


def text_table(rows):
    """What the guide shows of the results."""
    found = {(row["way"], row["asked"] == "none"): row for row in rows}
    lines = ["| trained | parameters | ε | bits per byte, private | not private |", "|---|---|---|---|---|"]
    public = found["public", False]
    lines.append(f"| only on the manual, which is public | – | 0 | {public['bits_per_byte']:.2f} | – |")
    words = {
        "scratch": "from random values",
        "full": "full, from the public model",
        "lora": "LoRA, from the public model",
    }
    for way, said in words.items():
        if (way, False) in found:
            private, plain = found[way, False], found.get((way, True))
            beside = "not run" if plain is None else f"{plain['bits_per_byte']:.2f}"
            bits = f"{private['bits_per_byte']:.2f} | {beside}"
            lines.append(f"| {said} | {private['parameters']} | {private['epsilon']:.2f} | {bits} |")
    return "\n".join(lines)


# the guides


def blocks(page, kind):
    """The code blocks of a guide."""
    return re.findall(rf"```{kind}\n(.*?)\n```", (ROOT / "docs" / page).read_text(), flags=re.S)


def test_the_diff_in_the_guide_is_that_of_the_files():
    plain, private = loop_sources()
    lines = difflib.unified_diff(plain, private, n=0, lineterm="")
    shown = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    assert blocks("own-loop.md", "diff") == ["\n".join(shown)]
    assert "\n".join(shown) in (ROOT / "README.md").read_text()
    assert len((ROOT / "docs" / "own-loop.md").read_text().splitlines()) <= 90


def test_the_early_stop_in_the_guide_and_its_certificate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("own-loop.md", "python")
    (quoted,) = blocks("own-loop.md", "text")
    exec(compile(snippet, "own-loop.md", "exec"), {})
    certificate = re.sub("`[0-9a-f]{64}`", "`…`", (tmp_path / "runs/stopped/certificate.md").read_text())
    assert "80 releases made of 128 charged" in quoted
    for line in quoted.splitlines():
        assert line in certificate.splitlines()


def opacus_loop():
    """What both loops of the guide begin with."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(2, (200,)))
    return {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": torch.utils.data.DataLoader(data, batch_size=20, shuffle=True),
        "criterion": torch.nn.CrossEntropyLoss(),
    }


def test_our_loop_in_the_guide_for_opacus_users(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, ours = blocks("coming-from-opacus.md", "python")
    names = opacus_loop()
    exec(compile(ours, "coming-from-opacus.md", "exec"), names)
    assert 2.9 < float(capsys.readouterr().out) <= 3
    assert next(iter(names["model"].state_dict())) == "0.weight"


def test_the_loop_in_the_guide_for_transformers(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="pip install 'dpsrm[hf]'")
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("transformers.md", "python")
    names = {}
    exec(compile(snippet, "transformers.md", "exec"), names)
    assert names["run"].epsilon <= 8
    assert "Written for GPUs, not yet run on one" in (ROOT / "docs" / "transformers.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_what_the_guide_says_of_opacus(capsys):
    opacus = pytest.importorskip("opacus")
    theirs, _ = blocks("coming-from-opacus.md", "python")
    names = opacus_loop()
    exec(compile(theirs, "coming-from-opacus.md", "exec"), names)
    assert 2.9 < float(capsys.readouterr().out) <= 3
    assert next(iter(names["model"].state_dict())) == "_module.0.weight"
    assert names["optimizer"].expected_batch_size == 20
    assert names["engine"].accountant.mechanism() == "prv"
    spent = []
    for poisson in (True, False):
        names, engine = opacus_loop(), opacus.PrivacyEngine()
        given = {"module": names["model"], "optimizer": names["optimizer"], "data_loader": names["loader"]}
        model, optimizer, loader = engine.make_private(
            **given, noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=poisson
        )
        for inputs, labels in loader:
            optimizer.zero_grad()
            names["criterion"](model(inputs), labels).backward()
            optimizer.step()
        spent.append(engine.get_epsilon(1e-5))
    assert spent[0] == spent[1]


def shown_noise():
    """Opacus', ours for add-remove and for replace-one, as the guide has them."""
    page = (ROOT / "docs" / "coming-from-opacus.md").read_text()
    (row,) = re.findall(r"^\| (0\.\d+) \| (0\.\d+) \| (0\.\d+) \(s = (0\.\d+)\)", page, re.M)
    return [float(number) for number in row]


def test_the_noise_in_the_guide():
    schedule = dpsrm.Training(batch=512, steps=585).schedule(60_000, fixed=None)
    found = []
    for adjacency in ("add-remove", "replace-one"):
        privacy = dpsrm.Privacy(epsilon=3.0, delta=1e-5, adjacency=adjacency)
        found.append(make_plan(Sgd(), schedule, n=60_000, privacy=privacy).noise_multiplier)
    assert [round(s, 3) for s in (found[0], 2 * found[1], found[1])] == shown_noise()[1:]


@pytest.mark.filterwarnings("ignore")
def test_opacus_noise_in_the_guide():
    utils = pytest.importorskip("opacus.accountants.utils")
    plan = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 512 / 60_000, "steps": 585}
    assert round(utils.get_noise_multiplier(**plan, accountant="prv"), 3) == shown_noise()[0]
