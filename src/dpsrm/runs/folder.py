"""The run folder: what can be published, and beside it `private/`, which must not be."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import InputError, need
from dpsrm.core.files import hold_lock, sha256_of, write_atomically
from dpsrm.runs.keys import destroy_keys

PRIVATE_NOTE = """\
Not for publication. Everything in this folder is an exact function of private records (losses, gradient norms, clip
shares, metrics on test data, a non-private reference) and carries no differential privacy guarantee.
"""


class _RunFile:
    """Where a file of a run lies, asked of its `RunFolder`."""

    def __init__(self, name: str) -> None:
        """Its path inside the run folder."""
        self._name = name

    def __get__(self, run: RunFolder, _: object = None) -> Path:
        """In this run's folder."""
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Where each file of a run lies."""

    path: Path

    ledger = _RunFile("ledger.jsonl")  # what was charged
    model = _RunFile("model.safetensors")  # the trained parameters
    config = _RunFile("config.toml")  # the settings, as they were used
    environment = _RunFile("environment.json")  # versions of what ran
    certificate = _RunFile("certificate.md")  # the guarantee in plain words
    report = _RunFile("report.html")  # the guarantee as a page to show to others
    statement = _RunFile("statement.json")  # the same for machines
    card = _RunFile("model_card.md")  # the same as a model card
    private = _RunFile("private")  # for the operator's eyes only
    private_report = _RunFile("private/report.html")  # utility, learning curves and advice, for the operator
    keys = _RunFile("private/keys.json")  # the stream key of a run that is not finished
    checkpoint = _RunFile("private/checkpoint.safetensors")  # where a run that is not finished stands
    sums = _RunFile("private/sums.log")  # fingerprints of what the releases of a run that is not finished were made of
    lock = _RunFile("private/lock")  # held by the process that trains here

    @property
    def bound(self) -> tuple[Path, ...]:
        """The published files whose digests stand in the ledger's closing line: all but the ledger."""
        said = self.statement, self.card, self.report, self.certificate
        return self.config, self.environment, self.model, *said

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run, perhaps one killed while it was being made or removed, and nothing but a run."""
        if not self.path.is_dir():
            return False
        parts = (*self.bound, self.private, self.ledger)
        found = {path.name.removesuffix(".tmp").removesuffix(".part") for path in self.path.iterdir()}
        return self.ledger.exists() or found <= {path.name for path in parts}

    @contextmanager
    def create(self, *, overwrite: bool = False) -> Iterator[None]:
        """Make the folder and hold it; an existing run is emptied only if `overwrite`, and nothing but a run ever is.

        Guarantee: nobody else trains in the folder meanwhile, or has it overwritten (see `hold`). The folder itself and
        its lock stay when a run is overwritten, so there is no moment at which two could take it.
        """
        if self.path.exists():
            need(
                overwrite,
                "the run folder must not exist yet",
                out=str(self.path),
                remedy="choose another out=, or overwrite=True (what it spent stays spent); a run that was interrupted "
                "goes on by dpsrm.resume, or by resume=True of make_private",
            )
            self._need_run()
        try:
            self.path.mkdir(parents=True, exist_ok=overwrite)
            self.private.mkdir(exist_ok=overwrite)
            self.private.chmod(0o700)
        except OSError as error:
            raise InputError(f"cannot create the run folder {self.path}: {error}; choose another --out") from error
        with self.hold():
            self._need_run()
            try:
                self._empty()
                (self.private / "README.txt").write_text(PRIVATE_NOTE)
            except OSError as error:
                raise InputError(f"cannot empty the run folder {self.path}: {error}; choose another --out") from error
            yield

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only process in this folder, and in the runs inside it; the lock ends with the process.

        Edge cases: `InputError` if another process trains here, or into a reference run inside `private/`.
        """
        with ExitStack() as held:
            held.enter_context(hold_lock(self.lock))
            for inner in sorted(self.private.glob("**/private/lock")):
                held.enter_context(hold_lock(inner))
            yield

    def _need_run(self) -> None:
        """Refuse to remove anything that is not a run."""
        need(self.is_run, "only a run folder can be overwritten", out=str(self.path), remedy="choose another --out")

    def _empty(self) -> None:
        """Remove everything but the lock, the key first."""
        destroy_keys(self.keys)
        for each in [*self.path.iterdir(), *self.private.iterdir()]:
            if each in (self.private, self.lock):
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()

    def digests(self, *paths: Path) -> dict[str, str]:
        """The SHA-256 of some of the run's files, by name; `InputError` if one cannot be read."""
        try:
            return {path.name: sha256_of(path) for path in paths}
        except OSError as error:
            raise InputError(f"a file of the run cannot be read: {error}; put it back, or train a new run") from error

    def destroy_key(self) -> None:
        """Destroy the key and remove checkpoint and fingerprints of a run that has ended."""
        destroy_keys(self.keys)
        self.checkpoint.unlink(missing_ok=True)
        self.sums.unlink(missing_ok=True)

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """Write a JSON file for people and machines."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def write_environment(self) -> None:
        """Record the versions of what ran; nothing about the machine's owner."""
        found = versions()
        self.write_json(self.environment, {"python": found.pop("python"), "packages": found})


def versions() -> dict[str, str]:
    """The versions of what runs."""
    names = ("dpsrm", "torch", "numpy", "scipy", "dp-accounting", "randomgen", "safetensors")
    packages = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **packages}
