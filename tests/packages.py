"""Which packages the library declares, and a Python in which some of them cannot be imported."""

import os
import re
import subprocess
import sys
import tomllib
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
"""


def plain(name):
    """A distribution's name in the one spelling that compares."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(group=None):
    """Distributions that pyproject.toml lists: the core's, or an extra's, with the extras that it takes in."""
    listed = PROJECT["dependencies"] if group is None else PROJECT["optional-dependencies"][group]
    found = set()
    for text in listed:
        asked = Requirement(text)
        inner = (declared(each) for each in asked.extras) if asked.name == "dpsrm" else [{plain(asked.name)}]
        found = found.union(*inner)
    return found


def with_what_they_need(names):
    """The distributions, and all that pip would install with them."""
    found, todo = set(), list(names)
    while todo:
        name = plain(todo.pop())
        if name in found:
            continue
        found.add(name)
        try:
            asked = [Requirement(text) for text in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:
            continue
        todo += [each.name for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


@lru_cache
def top_levels():
    """Every importable top-level name and the distributions that hold it; it takes a second."""
    return metadata.packages_distributions()


def importable(*, outside):
    """Top-level names whose distributions are all outside a set; our own are none of them."""
    return {top for top, dists in top_levels().items() if not {plain(each) for each in dists} & {*outside, "dpsrm"}}


def environment():
    """Variables for a process of its own: it imports the same dpsrm as this one (in tests/mutants, a changed copy)."""
    (package,) = find_spec("dpsrm").submodule_search_locations
    return {**os.environ, "PYTHONPATH": str(Path(package).parent)}


def run_without(names, code, *arguments, cwd=None):
    """Run Python code in a process of its own in which `names` cannot be imported."""
    command = [sys.executable, "-c", BLOCK.format(names=set(names)) + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment())
