"""Benchmark datasets: found in a folder, or downloaded from their public homes; checked by SHA-256 either way."""

from __future__ import annotations

import bz2
import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from dpsrm.core.errors import InputError, need

_HOME = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"


@dataclass(frozen=True)
class PublicFile:
    """A file below the data folder, its digest, and where it comes from."""

    path: str
    sha256: str
    url: str


LIBSVM_SETS: dict[str, tuple[PublicFile, PublicFile]] = {
    "a9a": (
        PublicFile("a9a/a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", f"{_HOME}/a9a"),
        PublicFile("a9a/a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", f"{_HOME}/a9a.t"),
    ),
    "ijcnn1": (
        PublicFile(
            "ijcnn1/ijcnn1",
            "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f",
            f"{_HOME}/ijcnn1.tr.bz2",
        ),
        PublicFile(
            "ijcnn1/ijcnn1.t",
            "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8",
            f"{_HOME}/ijcnn1.t.bz2",
        ),
    ),
}
"""Training and test file of each set; `ijcnn1` is the 49,990-record training file."""


def data_folder(given: Path | None) -> Path:
    """The folder of benchmark data: what the user gave, else $DPSRM_DATA, else ./data."""
    return given or Path(os.environ.get("DPSRM_DATA", "data"))


def public_files(name: str, folder: Path) -> tuple[Path, Path]:
    """The training and test file of a public dataset, downloaded into `folder` if they are not there.

    Edge cases: a file with another digest is an error, never used and never replaced silently; without a network the
    error says where the file belongs.
    """
    need(name in LIBSVM_SETS, f"the dataset must be one of {', '.join(LIBSVM_SETS)}", name=name)
    train, test = (_present(file, folder) for file in LIBSVM_SETS[name])
    return train, test


def _present(file: PublicFile, folder: Path) -> Path:
    """The file on disk, checked; downloaded first if it is missing."""
    path = folder / file.path
    if not path.exists():
        content = _download(file, path)
        _check(content, file, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
        return path
    try:
        _check(path.read_bytes(), file, path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return path


def _check(content: bytes, file: PublicFile, path: Path) -> None:
    """Refuse content with another digest."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise InputError(
            f"the SHA-256 of {path} must be {file.sha256}; got {digest}; delete the file, or give another --data-dir"
        )


def _download(file: PublicFile, path: Path) -> bytes:
    """The unpacked content from the file's public home."""
    try:
        with urllib.request.urlopen(file.url, timeout=60) as reply:
            content: bytes = reply.read()
    except (urllib.error.URLError, OSError) as error:
        raise InputError(
            f"{path} is not there and {file.url} cannot be reached ({error}); put the file there, or name the folder "
            "that has it with --data-dir or DPSRM_DATA"
        ) from error
    return bz2.decompress(content) if file.url.endswith(".bz2") else content
