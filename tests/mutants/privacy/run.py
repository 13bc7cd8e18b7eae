"""Apply one privacy bug at a time to a copy of the package and see whether `prove`, `audit` or tests find it.

    python tests/mutants/privacy/run.py [--only WORD] [--jobs 2]

Every bug runs in a process of its own. Results are kept in results.json as they come; docs/audit-bugs.md is made of it.
Without any bug nothing may be found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mutants import ROOT, Mutant, privacy_bugs

HERE = Path(__file__).resolve().parent
RESULTS, PAGE, LIMIT = HERE / "results.json", ROOT / "docs" / "audit-bugs.md", 900
FLAGS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no")
SLOW_IMPORTS = ("torch", "torch.func", "scipy.stats", "numba")
HEAD = """# Privacy bugs, and what finds them

Made by `make mutants` (tests/mutants/privacy/run.py): each bug is a small patch to a copy of the package, one at a
time. "prove" is `dpsrm prove` (the quick proofs, until the first finding); "audit" is `dpsrm audit --bound per-step`
with 20,000 canaries and 6 steps; tests of laws and statistics are only run where both found nothing. Seconds of
processor time, imports not counted.

| bug | prove | audit | tests | what was said |
|---|---|---|---|---|
"""


def checked(tests: tuple[str, ...]) -> dict[str, object]:
    """In the child: what each check says, with seconds; empty where it found nothing."""
    from dpsrm.audit import Target, audit
    from dpsrm.audit.cases import quick
    from dpsrm.core.errors import DpsrmError
    from dpsrm.methods import Srm

    row: dict[str, object] = {"prove": None, "audit": None, "tests": None, "said": ""}
    start = time.process_time()
    for trial in quick():
        try:
            findings = trial.prove().findings
        except DpsrmError as error:
            findings = (f"refused: {error}",)
        if findings:
            row |= {"prove": round(time.process_time() - start, 1), "said": f"{findings[0]} [{trial}]"}
            break
    start = time.process_time()
    with suppress(DpsrmError):
        found = audit(Target(method=Srm(), epsilon=4.0, canaries=20_000, steps=6), bound="per-step")
        if found.violated:
            row |= {"audit": round(time.process_time() - start, 1), "said": row["said"] or str(found)}
    if row["prove"] is None and row["audit"] is None and tests:
        start = time.process_time()
        if pytest.main([*FLAGS, *tests]) == 1:
            row |= {"tests": round(time.process_time() - start, 1), "said": ", ".join(tests)}
    return row


def child(copy: Path, tests: tuple[str, ...]) -> None:
    """In the forked process: check the copy and write what was found beside it."""
    os.setsid()
    with (copy / "output.txt").open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        os.chdir(ROOT)
        os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy), str(ROOT / "tests")]
        package = importlib.import_module("dpsrm")
        assert Path(str(package.__file__)).parent == copy / "dpsrm"
        logging.disable(logging.WARNING)
        os.fsync = lambda _: None  # type: ignore[assignment]
        (copy / "row.json").write_text(json.dumps(checked(tests)))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def start(bug: Mutant | None, copy: Path) -> int:
    """Change the copy and check it in a forked process."""
    (copy / "row.json").unlink(missing_ok=True)
    if bug is not None:
        (copy / "dpsrm" / bug.file).write_text(bug.applied(), encoding="utf-8")
    process = os.fork()
    if process == 0:
        child(copy, bug.tests if bug else ())
    return process


def finished(process: int, begun: float) -> bool:
    """Whether a child has ended; one that takes too long is."""
    if os.waitpid(process, os.WNOHANG)[0]:
        return True
    if time.monotonic() - begun < LIMIT:
        return False
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def row_of(copy: Path) -> dict[str, object]:
    """What the child wrote; what it printed, if it failed."""
    path = copy / "row.json"
    if path.is_file():
        return json.loads(path.read_text())
    text = (copy / "output.txt").read_text(errors="replace").strip().splitlines() if copy.exists() else []
    return {"prove": None, "audit": None, "tests": None, "said": f"FAILED: {text[-1] if text else 'too long'}"}


def keep(name: str, row: dict[str, object]) -> None:
    """Write a result down, and the page."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    names = [bug.name.partition(": ")[2] for bug in privacy_bugs()]
    known[name] = row
    known = {each: known[each] for each in names if each in known}
    RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    lines = [
        f"| {each} | {cell(r['prove'])} | {cell(r['audit'])} | {cell(r['tests'])} | {str(r['said'])[:160]} |"
        for each, r in known.items()
    ]
    caught = sum(bool(r["prove"] or r["audit"] or r["tests"]) for r in known.values())
    alone = sum(bool(r["prove"] or r["audit"]) for r in known.values())
    foot = f"\n{len(known)} bugs: {caught} found, {alone} of them by prove or audit alone.\n"
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + foot)


def cell(seconds: object) -> str:
    """A cell of the table."""
    return "" if seconds is None else f"{seconds} s"


def main() -> int:
    """Run all (or the chosen) bugs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only those without a result")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in SLOW_IMPORTS:
        importlib.import_module(name)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    waiting: list[Mutant | None] = [bug for bug in privacy_bugs() if options.only in bug.name]
    if options.missing:
        waiting = [bug for bug in waiting if bug is not None and bug.name.partition(": ")[2] not in known]
    waiting = [*([] if options.only or options.missing else [None]), *waiting]
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(number) for number in range(options.jobs)]
        for copy in copies:
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        running: list[tuple[int, Mutant | None, Path, float]] = []
        while waiting or running:
            while waiting and copies:
                bug, copy = waiting.pop(0), copies.pop()
                running.append((start(bug, copy), bug, copy, time.monotonic()))
            for each in list(running):
                if finished(each[0], each[3]):
                    running.remove(each)
                    bad += report(each[1], each[2])
                    copies.append(each[2])
            time.sleep(0.05)
    sys.stdout.write(f"{len(bad)} problems {bad}\n")
    return 1 if bad else 0


def report(bug: Mutant | None, copy: Path) -> list[str]:
    """Print and keep one result; its name if it is a bad one."""
    row = row_of(copy)
    found = bool(row["prove"] or row["audit"] or row["tests"])
    name = "(without any bug)" if bug is None else bug.name.partition(": ")[2]
    if bug is not None:
        shutil.copyfile(ROOT / "src" / "dpsrm" / bug.file, copy / "dpsrm" / bug.file)
        keep(name, row)
    well = not found and row["said"] == "" if bug is None else found
    by = "+".join(check for check in ("prove", "audit", "tests") if row[check]) or "NOTHING"
    sys.stdout.write(f"{'ok ' if well else '***'} {name}: {by} {str(row['said'])[:200]}\n")
    sys.stdout.flush()
    return [] if well else [name]


if __name__ == "__main__":
    raise SystemExit(main())
