"""The run folder: what can be published, and beside it `private/`, which must not be."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsrm.core.errors import InputError, need
from dpsrm.training.files import write_atomically
from dpsrm.training.keys import destroy_keys

PRIVATE_NOTE = """\
Not for publication. Everything in this folder is an exact function of private records (losses, gradient norms, clip
shares, metrics on test data, a non-private reference) and carries no differential privacy guarantee.
"""


@dataclass(frozen=True)
class RunFolder:
    """Where each file of a run lies."""

    path: Path

    @property
    def ledger(self) -> Path:
        """What was charged."""
        return self.path / "ledger.jsonl"

    @property
    def model(self) -> Path:
        """The trained parameters."""
        return self.path / "model.safetensors"

    @property
    def config(self) -> Path:
        """The settings, as they were used."""
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        """Versions of what ran."""
        return self.path / "environment.json"

    @property
    def certificate(self) -> Path:
        """The guarantee in plain words."""
        return self.path / "certificate.md"

    @property
    def private(self) -> Path:
        """For the operator's eyes only."""
        return self.path / "private"

    @property
    def keys(self) -> Path:
        """The stream key of a run that is not finished."""
        return self.private / "keys.json"

    @property
    def checkpoint(self) -> Path:
        """Where a run that is not finished stands."""
        return self.private / "checkpoint.safetensors"

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run, perhaps one killed while it was being made or removed, and nothing but a run."""
        if not self.path.is_dir():
            return False
        parts = (self.config, self.environment, self.private, self.ledger, self.model, self.certificate)
        found = {path.name.removesuffix(".tmp").removesuffix(".part") for path in self.path.iterdir()}
        return self.ledger.exists() or found <= {path.name for path in parts}

    def create(self, *, overwrite: bool = False) -> None:
        """Make the folder; an existing run is removed only if `overwrite`, and nothing but a run ever is."""
        if self.path.exists():
            need(
                overwrite,
                "the run folder must not exist yet",
                out=str(self.path),
                remedy="choose another --out, go on with that run by --resume if it was interrupted, or --overwrite it "
                "(what it spent stays spent)",
            )
            need(self.is_run, "only a run folder can be overwritten", out=str(self.path), remedy="choose another --out")
        try:
            if self.path.exists():
                destroy_keys(self.keys)
                shutil.rmtree(self.path)
            self.private.mkdir(parents=True)
            self.private.chmod(0o700)
            (self.private / "README.txt").write_text(PRIVATE_NOTE)
        except OSError as error:
            raise InputError(f"cannot create the run folder {self.path}: {error}; choose another --out") from error

    def forget(self) -> None:
        """Destroy the key and remove the checkpoint of a run that has ended."""
        destroy_keys(self.keys)
        self.checkpoint.unlink(missing_ok=True)

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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()
