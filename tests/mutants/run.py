"""Apply one mutant at a time to a copy of the package and see which test notices; exit 1 if one survives.

    python tests/mutants/run.py [--only WORD] [--jobs 2]

The named tests are also run without any mutant: a test that fails anyway proves nothing. Every run is a process of its
own, forked from this one, which has imported what takes long (torch) but nothing of the package.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import ROOT, Mutant, mutants

LIMIT = 600  # seconds a run may take
FLAGS = ("-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "-rfE")
SLOW_IMPORTS = ("torch", "torch.func", "scipy.stats", "pandas", "mpmath", "typer", "rich", "numba")
NOT_THE_COPY, TOO_LONG = 70, 124


@dataclass(kw_only=True)
class Run:
    """One pytest process: against which copy, for which mutant (None: without any), since when, and what it prints."""

    process: int
    mutant: Mutant | None
    copy: Path
    output: Path
    start: float


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def start_run(mutant: Mutant | None, copy: Path, tests: list[str]) -> Run:
    """Change the copy and run `tests` against it in a forked process."""
    if mutant is not None:
        (copy / "dpsrm" / mutant.file).write_text(mutant.applied(), encoding="utf-8")
    output = copy / "output.txt"
    process = os.fork()
    if process == 0:
        code = NOT_THE_COPY
        try:
            code = child(copy, output, [*FLAGS, *(["-x"] if mutant else []), *tests])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return Run(process=process, mutant=mutant, copy=copy, output=output, start=time.monotonic())


def child(copy: Path, output: Path, arguments: list[str]) -> int:
    """In the forked process: pytest's exit code, with the copy certainly imported and nothing printed here."""
    os.setsid()
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy))
    package = importlib.import_module("dpsrm")
    if Path(str(package.__file__)) != copy / "dpsrm" / "__init__.py":
        return NOT_THE_COPY
    return int(pytest.main(arguments))


def finished(run: Run) -> tuple[int, list[str]] | None:
    """The exit code and the tests that failed, if the run has ended; the copy is put back as it was."""
    process, status = os.waitpid(run.process, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status) if process else None
    if code is None and time.monotonic() - run.start > LIMIT:
        with suppress(ProcessLookupError):
            os.killpg(run.process, signal.SIGKILL)
        os.waitpid(run.process, 0)
        code = TOO_LONG
    if code is None:
        return None
    if run.mutant is not None:
        shutil.copyfile(ROOT / "src" / "dpsrm" / run.mutant.file, run.copy / "dpsrm" / run.mutant.file)
    text = run.output.read_text(encoding="utf-8", errors="replace")
    return code, re.findall(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE)


def verdict(run: Run, code: int, failed: list[str]) -> tuple[bool, str]:
    """Whether all is well, and what to say."""
    if run.mutant is None:
        return code == 0, ", ".join(failed) or f"pytest ended with {code}"
    if code == 1 and failed:
        return True, failed[0]
    if code == 0:
        return False, "SURVIVED " + ", ".join(run.mutant.tests)
    return False, f"NOT RUN: pytest ended with {code}"


def run_all(chosen: list[Mutant], folder: Path, *, jobs: int) -> list[str]:
    """Run every mutant, and all tests without one; print each result as it comes; the names of those that are bad."""
    copies = [folder / str(number) for number in range(jobs)]
    for copy in copies:
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    waiting: list[Mutant | None] = [*reversed(chosen), None]
    running: list[Run] = []
    bad: list[str] = []
    done = 0
    while waiting or running:
        while waiting and copies:
            mutant = waiting.pop()
            named = chosen if mutant is None else [mutant]
            tests = sorted({test for each in named for test in each.tests})
            running.append(start_run(mutant, copies.pop(), tests))
        for run in list(running):
            result = finished(run)
            if result is None:
                continue
            running.remove(run)
            copies.append(run.copy)
            well, what = verdict(run, *result)
            done += run.mutant is not None
            name = run.mutant.name if run.mutant else "(without any mutant)"
            word = "ok    " if run.mutant is None and well else "caught" if well else "******"
            say(f"[{done:3d}/{len(chosen)}] {word}  {name}  →  {what}")
            bad += [] if well else [name]
        time.sleep(0.05)
    return bad


def main() -> int:
    """Run all (or the chosen) mutants and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only mutants whose name has this word in it")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in mutant.name]
    if not chosen:
        parser.error(f"no mutant has {options.only!r} in its name")
    stale = [mutant for mutant in chosen if mutant.occurrences() != 1]
    for mutant in stale:
        say(f"****** STALE  {mutant.name}: the old text stands {mutant.occurrences()} times in {mutant.file}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bad = run_all([mutant for mutant in chosen if mutant not in stale], Path(folder), jobs=options.jobs)
    caught = len(chosen) - len(stale) - len([name for name in bad if name != "(without any mutant)"])
    seconds = time.monotonic() - start
    say(f"{len(chosen)} mutants: {caught} caught, {len(bad)} problems, {len(stale)} stale; {seconds:.0f} s")
    return 1 if bad or stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
