"""Rules about the source that no linter here knows."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "dpsrm"
FILES = sorted(PACKAGE.rglob("*.py"))


def name(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_mechanisms_read_a_secret(path):
    """`ClippedSum.secret` is read in mechanisms/ alone; engines only make it."""
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "secret"
    ]
    assert not reads or name(path).startswith("mechanisms/"), f"{name(path)}: lines {reads}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_and_functions_stay_small(path):
    """House style: 400 lines a file, 50 a function's body, at the most."""
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            assert not body or body[-1].end_lineno - body[0].lineno < 50, node.name


@pytest.mark.parametrize("path", [path for path in FILES if not name(path).startswith("bench/")], ids=name)
def test_no_randomness_but_the_streams(path):
    """No default generator, no global seed: randomness is an argument (benchmarks may make up their data).

    Users' datasets draw from the global generators: one file sets them, for each record, and puts them back.
    """
    text = path.read_text() if name(path) != "core/users_generators.py" else ""
    for word in ("np.random.seed", "default_rng(", "random.random(", "torch.randn(", "torch.normal("):
        lines = [line for line in text.splitlines() if word in line and not (">>>" in line or "generator=" in line)]
        assert not lines, lines


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_the_key_file_gets_the_key(path):
    """`Streams.surrender_key` is called in runs/folder.py alone, and nothing is ever unpickled."""
    text = path.read_text()
    assert ".surrender_key(" not in text or name(path) == "runs/folder.py"
    assert "pickle.load" not in text
    assert "torch.load(" not in text


NOISE = {
    "gaussian_noise": "mechanisms/airlock.py",
    "on_grid": "mechanisms/airlock.py",
    "noisy_min": "mechanisms/noisy_min.py",
}
"""The functions that make noise or round it away, and where they are."""


TIMES_NOISE = "bench/randomness.py"
"""The benchmark that measures what noise costs: it has zeros and a stream of its own, and no records."""


METERS_NOISE = "audit/statistics.py"
"""Measures what noise the mechanisms add, to sums of zeros, with a research stream of its own."""


def words(tree):
    """Every name a file reads, as a variable, an attribute or an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.name.split(".")[-1], node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_hands_out_noise(path):
    """Only the airlock knows what makes noise; only the loop and the score of a search give it the secret stream."""
    tree, file = ast.parse(path.read_text()), name(path)
    known = [(word, line) for word, line in words(tree) if word in NOISE and NOISE[word] != file]
    assert not known or file in ("mechanisms/airlock.py", TIMES_NOISE), known
    streams = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "noise"]
    givers = ("training/step.py", "estimators/scores.py", "core/secret.py", TIMES_NOISE, METERS_NOISE)
    loops = file in givers or file.startswith("accounting/")
    assert not streams or loops, streams


def test_only_the_test_bench_opens_the_window():
    """`WatchedAirlock` (which refuses private runs) is known in audit/ alone."""
    known = [name(path) for path in FILES if "watched" in path.read_text() and "WatchedAirlock" in path.read_text()]
    assert set(known) == {"mechanisms/watched.py", "audit/rehearsal.py", "audit/statistics.py", "audit/white_box.py"}


def test_one_function_adds_noise():
    """Within the airlock each is called once: Gaussian noise and rounding by the one function that releases sums."""
    tree = ast.parse((PACKAGE / "mechanisms" / "airlock.py").read_text())
    (lock,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    callers = {
        called: [f.name for f in lock.body if isinstance(f, ast.FunctionDef) for n, _ in words(f) if n == called]
        for called in NOISE
    }
    assert callers == {"gaussian_noise": ["_released"], "on_grid": ["_released"], "noisy_min": ["select"]}
    everywhere = [word for word, _ in words(tree)]
    assert [everywhere.count(word) for word in ("gaussian_noise", "on_grid")] == [1, 1], "one call"
