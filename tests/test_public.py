"""The public names of the package: three lists that must agree, and what `dir` and `--version` say."""

import ast
import subprocess
import sys

import pytest

import dpsrm
from packages import PROJECT, ROOT, environment

TREE = ast.parse((ROOT / "src" / "dpsrm" / "__init__.py").read_text())


def typed_imports():
    """Name → module of the imports that only type checkers see."""
    (block,) = (node for node in TREE.body if isinstance(node, ast.If))
    found = [
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    return {name: module for module, name in found}


def test_the_three_lists_agree():
    assert typed_imports() == dpsrm._MODULE_OF
    assert sorted(dpsrm._MODULE_OF) == sorted(dpsrm.__all__)
    assert len(set(dpsrm.__all__)) == len(dpsrm.__all__)


@pytest.mark.parametrize("name", dpsrm.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert getattr(dpsrm, name).__doc__


def test_dir_shows_what_there_is_before_it_is_loaded():
    code = "import sys, dpsrm; print(*dir(dpsrm)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.split() == sorted([*dpsrm.__all__, "__version__"])


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = dpsrm.trane


def test_one_version(dpsrm):
    import dpsrm as package

    assert package.__version__ == PROJECT["version"]
    assert dpsrm("--version").stdout == f"dpsrm {PROJECT['version']}\n"
