"""Benchmark datasets: found in a folder, or downloaded from their public homes; checked by SHA-256 either way."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dpsrm.core.errors import InputError, need

_HOME = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_DIGITS = "https://ossci-datasets.s3.amazonaws.com/mnist"
_CLOTHES = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_TINY = "https://www.cs.toronto.edu/~kriz"
_DEBIAN = Path("/usr/share/datasets")
"""Where Debian's packages of datasets put them (dataset-fashion-mnist)."""


@dataclass(frozen=True)
class PublicFile:
    """A file below the data folder, its digest, and where it comes from; `member` is its name inside a tar archive."""

    path: str
    sha256: str
    url: str
    member: str | None = None


def _libsvm(path: str, sha256: str, name: str) -> PublicFile:
    """A file of the LIBSVM collection."""
    return PublicFile(path, sha256, f"{_HOME}/{name}")


LIBSVM_SETS: dict[str, tuple[PublicFile, PublicFile]] = {
    "a9a": (
        _libsvm("a9a/a9a", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", "a9a"),
        _libsvm("a9a/a9a.t", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", "a9a.t"),
    ),
    "ijcnn1": (
        _libsvm("ijcnn1/ijcnn1", "16506cad788cf7c9607454150ed1994788204bac2ff4c9cb3b320036b6950d3f", "ijcnn1.tr.bz2"),
        _libsvm("ijcnn1/ijcnn1.t", "e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8", "ijcnn1.t.bz2"),
    ),
}
"""Training and test file of each set; `ijcnn1` is the 49,990-record training file."""


def _digits(name: str, sha256: str) -> PublicFile:
    """A file of MNIST."""
    return PublicFile(f"mnist/{name}", sha256, f"{_DIGITS}/{name}.gz")


def _clothes(name: str, sha256: str) -> PublicFile:
    """A file of Fashion-MNIST."""
    return PublicFile(f"fashion-mnist/{name}", sha256, f"{_CLOTHES}/{name}.gz")


def _tiny(archive: str, folder: str, name: str, sha256: str) -> PublicFile:
    """A file of CIFAR-10 or CIFAR-100."""
    path = f"{folder}/{name}.bin"
    return PublicFile(f"{archive}/{path}", sha256, f"{_TINY}/{archive}-binary.tar.gz", path)


IMAGE_SETS: dict[str, tuple[PublicFile, ...]] = {
    "mnist": (
        _digits("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        _digits("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
        _digits("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _digits("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
    "fashion-mnist": (
        _clothes("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        _clothes("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        _clothes("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        _clothes("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    ),
    "cifar-10": tuple(
        _tiny("cifar-10", "cifar-10-batches-bin", name, digest)
        for name, digest in (
            ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    "cifar-100": (
        _tiny(
            "cifar-100",
            "cifar-100-binary",
            "train",
            "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        ),
    ),
}
"""The files of each image set, the test files last; of CIFAR-100, which is public here, only those to train on."""


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


def image_files(name: str, folder: Path) -> tuple[Path, ...]:
    """The files of a public image set, in the order of `IMAGE_SETS`; present, checked and downloaded as those above."""
    need(name in IMAGE_SETS, f"the image set must be one of {', '.join(IMAGE_SETS)}", name=name)
    return tuple(_present(file, folder) for file in IMAGE_SETS[name])


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
    """The unpacked content from a Debian package if it is installed, else from the file's public home."""
    packed = _DEBIAN / f"{file.path}.gz"
    try:
        content = packed.read_bytes() if packed.exists() else _fetched(file.url)
    except (urllib.error.URLError, OSError) as error:
        raise InputError(
            f"{path} is not there and {file.url} cannot be reached ({error}); put the file there, or name the folder "
            "that has it with --data-dir or DPSRM_DATA"
        ) from error
    return _unpacked(content, file)


@lru_cache(maxsize=1)
def _fetched(url: str) -> bytes:
    """What is at an address; the last archive is remembered, since several files come from one."""
    with urllib.request.urlopen(url, timeout=60) as reply:
        content: bytes = reply.read()
    return content


def _unpacked(content: bytes, file: PublicFile) -> bytes:
    """What a download holds: compressed, a member of an archive, or as it is; the digest is checked afterwards."""
    try:
        if file.member is not None:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                member = archive.extractfile(file.member)
                return b"" if member is None else member.read()
        if file.url.endswith(".bz2"):
            return bz2.decompress(content)
        if file.url.endswith(".gz"):
            return gzip.decompress(content)
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise InputError(f"{file.url} does not hold {file.path}: {error}") from error
    return content
