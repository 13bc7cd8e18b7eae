"""What must be installed for what: the core trains with its own list alone, the rest says what is missing."""

import ast
from pathlib import Path

import pytest

from dpsrm.core.errors import MissingExtra, need_extra
from imports import MODULES, PACKAGE, graph, outside_imports, parents
from packages import PROJECT, declared, importable, plain, run_without, top_levels, with_what_they_need

OPTIONAL = importable(outside=with_what_they_need(declared()))
TRAIN = """
import torch, dpsrm
inputs = torch.randn(200, 3)
settings = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=2.0, delta=1e-4), training=dpsrm.Training(batch=20, steps=5, learning_rate=0.5)
)
labels = (inputs[:, 0] > 0).long()
deep = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
for name, model in (("linear", torch.nn.Linear(3, 2)), ("mlp", deep)):
    run = dpsrm.train(model, torch.nn.CrossEntropyLoss(reduction="none"), (inputs, labels), settings, out=name)
    assert 0 < run.epsilon <= 2 and dpsrm.verify(run.folder.path).ok
"""
CLI = "import sys; sys.argv[0] = 'dpsrm'; from dpsrm.cli.app import main; main()"


def test_the_core_is_small():
    assert len(declared()) <= 8
    assert {"typer", "rich", "pandas", "sklearn", "pyarrow", "matplotlib", "joblib", "statsmodels"} <= OPTIONAL
    assert not OPTIONAL & {"torch", "numpy", "scipy", "numba"}


def test_training_needs_the_core_alone(tmp_path):
    done = run_without(OPTIONAL, TRAIN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mlp" / "certificate.md").exists()


def test_loading_a_csv_needs_the_core_alone_and_parquet_says_what_it_needs(tmp_path):
    (tmp_path / "x.csv").write_text("age,ill\n31,yes\n40,no\n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    code = "import dpsrm; print(len(dpsrm.load('x.csv', 'ill').records)); dpsrm.load('x.parquet', 'ill')"
    done = run_without(OPTIONAL, code, cwd=tmp_path)
    assert done.stdout == "2\n"
    assert done.stderr.splitlines()[-1].endswith(
        "MissingExtra: this needs the package pyarrow; install it: pip install 'dpsrm[cli]'"
    )


@pytest.mark.parametrize(
    ("gone", "arguments", "words"),
    [
        ("typer", ["--help"], "typer; install it: pip install 'dpsrm[cli]'"),
        ("rich", ["--help"], "rich; install it: pip install 'dpsrm[cli]'"),
        ("statsmodels", ["demo"], "statsmodels; install it: pip install 'dpsrm[demo]'"),
        ("joblib", ["reproduce", "a9a"], "joblib; install it: pip install 'dpsrm[experiments]'"),
        ("torch", ["demo"], "needs PyTorch"),
    ],
)
def test_a_command_without_its_package_is_one_line_and_exit_2(gone, arguments, words, tmp_path):
    done = run_without({gone}, CLI, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dpsrm: ")
    assert words in line
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_also_an_import_error():
    with pytest.raises(ImportError, match=r"pip install 'dpsrm\[demo\]'") as caught:
        need_extra("no_such_package", extra="demo")
    assert caught.type is MissingExtra
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


ALIASES = {"interpret": "interpret-core"}
"""Names of packages that are not installed for the tests, where they differ from what is imported."""


def distributions(top):
    """The installed distributions that hold a top-level name, as pyproject.toml may spell them."""
    return {plain(name) for name in top_levels().get(top, [ALIASES.get(top, top)])}


def reached_from(start):
    """The package's modules that `start` loads, at once or inside functions."""
    edges, found, todo = graph("module", "function"), set(), [start]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            todo += [*edges[module], *parents(module)]
    return found


def test_the_core_list_covers_what_train_imports():
    modules = reached_from("dpsrm.training")
    assert {"dpsrm.training.train", "dpsrm.gradients.linear_kernels", "dpsrm.runs.ledger"} <= modules
    for module in modules:
        for top, place in outside_imports(MODULES[module]):
            if place == "module":  # inside functions: the test of optional packages
                assert distributions(top) & declared(), f"{module} imports {top}, which is no core dependency"


def guarded(tree):
    """Packages that a file asks for, and the extra that it names for each."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "need_extra"]
    return {ast.unparse(call.args[0]).strip("'"): call.keywords[0].value.value for call in asked}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_optional_packages_are_asked_for_before_they_are_imported(path):
    """An import from outside the core needs `need_extra` in its file; commands may count on typer and rich."""
    asked = guarded(ast.parse(path.read_text()))
    for top, place in outside_imports(path):
        if distributions(top) & declared() or (path.parent.name == "cli" and top in ("typer", "rich")):
            continue
        faces = path.parent.name == "estimators" and top == "sklearn"  # classes that inherit; nothing else imports them
        assert place == "function" or faces, f"{path.name} imports {top} for everybody"
        assert top in asked, f"{path.name} imports {top} without need_extra"
    for package, extra in asked.items():
        if package != "package":  # a loop over several
            assert distributions(package) & declared(extra), f"[{extra}] does not install {package}"


def test_only_the_public_module_and_the_benchmark_reach_the_estimators():
    """They import scikit-learn at once, so whoever imports them needs it."""
    at_once = graph("module")
    reaching = {module for module, others in at_once.items() if any("dpsrm.estimators" in other for other in others)}
    outside = {module for module in reaching if not module.startswith("dpsrm.estimators")}
    assert outside == {"dpsrm.sklearn"}


def test_what_the_makefile_installs_runs_every_command():
    """make install: the demo and all commands; make test: all that tests import."""
    text = (Path(__file__).parents[1] / "Makefile").read_text()
    assert "--editable '.[cli,demo,experiments]'" in text
    extras = [
        "cli",
        "sklearn",
        "demo",
        "features",
        "images",
        "experiments",
        "compare",
        "hf",
        "panels",
        "tracking",
        "docs",
        "dev",
    ]
    assert list(PROJECT["optional-dependencies"]) == extras
    known = declared() | declared("dev")
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir()}
    for file in Path(__file__).parent.rglob("*.py"):
        for top, _ in outside_imports(file):
            ours = top in folders or list(Path(__file__).parent.rglob(f"{top}.py"))
            assert ours or distributions(top) & known, f"{file.name} imports {top}, which [dev] does not install"
