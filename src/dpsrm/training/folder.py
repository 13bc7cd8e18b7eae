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

    def create(self, *, overwrite: bool = False) -> None:
        """Make the folder; an existing run is removed only if `overwrite`, and nothing but a run ever is."""
        if self.path.exists():
            need(
                overwrite,
                "the run folder must not exist yet",
                out=str(self.path),
                remedy="choose another --out, or --overwrite to delete that run (what it spent stays spent)",
            )
            is_run = self.path.is_dir() and (self.ledger.exists() or not any(self.path.iterdir()))
            need(is_run, "only a run folder can be overwritten", out=str(self.path), remedy="choose another --out")
            shutil.rmtree(self.path)
        try:
            self.private.mkdir(parents=True)
            self.private.chmod(0o700)
            (self.private / "README.txt").write_text(PRIVATE_NOTE)
        except OSError as error:
            raise InputError(f"cannot create the run folder {self.path}: {error}; choose another --out") from error

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        """Write a JSON file for people and machines."""
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def write_environment(self) -> None:
        """Record the versions of what ran; nothing about the machine's owner."""
        names = ("dpsrm", "torch", "numpy", "scipy", "dp-accounting", "randomgen", "safetensors")
        versions = {name: importlib.metadata.version(name) for name in names}
        self.write_json(self.environment, {"python": platform.python_version(), "packages": versions})


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
