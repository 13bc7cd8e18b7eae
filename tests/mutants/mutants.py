"""The list of mutants: one small, wrong change to a privacy-critical line each, and the tests that must notice it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "src" / "dpsrm"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`old` in `file` (under src/dpsrm) becomes `new`; one of `tests` (pytest's node ids) must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def occurrences(self, package: Path = PACKAGE) -> int:
        """How often `old` stands in the file: it must be once, or the list is stale."""
        path = package / self.file
        return path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0

    def applied(self, package: Path = PACKAGE) -> str:
        """The file's text with the change."""
        return (package / self.file).read_text(encoding="utf-8").replace(self.old, self.new)


def mutants(folder: Path = HERE) -> list[Mutant]:
    """All mutants, from the TOML files in a folder."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for body in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            name = f"{path.stem}: {body['name']}"
            tests = tuple(body.get("tests", ()))
            found.append(Mutant(name=name, file=body["file"], old=body["old"], new=body["new"], tests=tests))
    return found


def privacy_bugs() -> list[Mutant]:
    """The privacy bugs that `prove` and `audit` must find (tests/mutants/privacy/run.py)."""
    return mutants(HERE / "privacy")
