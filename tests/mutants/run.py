"""Apply one mutant at a time to a copy of the package and see which test notices; exit 1 if one survives.

    python tests/mutants/run.py [--only WORD] [--jobs 2]

The named tests run first without any mutant: a test that fails anyway proves nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import ROOT, Mutant, mutants

LIMIT = 300  # seconds a mutant's tests may take
FLAGS = ("-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "-rfE")


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def pytest(copy: Path, tests: tuple[str, ...], *options: str, limit: int = LIMIT) -> tuple[int, list[str]]:
    """Run `tests` against the package in `copy`: pytest's exit code and the tests that failed (124: no end in time)."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *FLAGS, *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, []
    return done.returncode, re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)


def new_copy(folder: Path, number: int) -> Path:
    """A copy of src/ that is certainly the one the tests import."""
    copy = folder / str(number)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    where = [sys.executable, "-c", "import dpsrm; print(dpsrm.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    found = subprocess.run(where, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    if Path(found) != copy / "dpsrm" / "__init__.py":
        raise SystemExit(f"the tests would import {found}, not the copy {copy}")
    return copy


def verdict(mutant: Mutant, copies: Queue[Path]) -> tuple[bool, str]:
    """Whether a test noticed, and which; the copy is put back as it was."""
    if mutant.occurrences() != 1:
        return False, f"STALE: the old text stands {mutant.occurrences()} times in {mutant.file}"
    copy = copies.get()
    path = copy / "dpsrm" / mutant.file
    honest = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.applied(), encoding="utf-8")
        code, failed = pytest(copy, mutant.tests, "-x")
    finally:
        path.write_text(honest, encoding="utf-8")
        copies.put(copy)
    if code == 1 and failed:
        return True, failed[0]
    if code == 0:
        return False, "SURVIVED: " + ", ".join(mutant.tests)
    return False, f"NOT RUN: pytest ended with {code}"


def honest_failures(chosen: list[Mutant], copy: Path) -> list[str]:
    """The named tests that fail, or cannot be found, without any mutant."""
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    code, failed = pytest(copy, tests, limit=3 * LIMIT)
    return failed or ([] if code == 0 else [f"pytest ended with {code}: is a test's name wrong?"])


def main() -> int:
    """Run all (or the chosen) mutants and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only mutants whose name has this word in it")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in mutant.name]
    start, bad = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(options.jobs):
            copies.put(new_copy(Path(folder), number))
        honest = new_copy(Path(folder), options.jobs)
        failures = pool.submit(honest_failures, chosen, honest)
        futures = {pool.submit(verdict, mutant, copies): mutant for mutant in chosen}
        for number, future in enumerate(as_completed(futures), start=1):
            caught, by = future.result()
            say(f"[{number:3d}/{len(chosen)}] {'caught' if caught else '******'}  {futures[future].name}  →  {by}")
            bad += [] if caught else [futures[future].name]
        for test in failures.result():
            say(f"****** fails without any mutant: {test}")
            bad.append(test)
    say(f"{len(chosen)} mutants, {len(bad)} problems, {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
