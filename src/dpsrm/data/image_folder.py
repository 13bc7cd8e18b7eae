"""Images in folders, one folder per class, read when drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need, need_extra
from dpsrm.core.tracking import Track, silent
from dpsrm.data.conversion import Indices, as_positions

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Records `folder/class/image.png`: (inputs (B, C, H, W) as numbers in [0, 1], classes (B,)).

    Args:
        folder: holds a folder per class and nothing else that counts; hidden files are left out.
        size: (H, W), public: every image is scaled to it, whatever its own size is.
        channels: 3, or 1 for grey.
        track: shows the progress of the fingerprint.

    Guarantee: what an image becomes is a function of that image, the size and the channels. Classes are the names of
    the folders, which are public like a table's header.

    Edge cases: a file that is no image, is cut off, or is far larger than a photograph (Pillow's limit), is refused
    when it is drawn, by name; other kinds of files in a class's folder when the folder is opened.
    """

    folder: Path | str
    size: tuple[int, int]
    channels: int = 3
    track: Track = silent
    classes: tuple[str, ...] = field(init=False)
    files: tuple[tuple[str, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """List the files; none is read."""
        need_extra("PIL", extra="images")
        root = Path(self.folder)
        need(root.is_dir(), "images lie in a folder with a folder per class", folder=str(root))
        good = len(self.size) == 2 and all(type(side) is int and side >= 1 for side in self.size)
        need(good, "size is (height, width), whole numbers", size=self.size)
        need(self.channels in _MODES, "channels are 3, or 1 for grey", channels=self.channels)
        names = sorted(each.name for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
        need(len(names) >= 2, "there must be a folder per class, two or more", folder=str(root), classes=names)
        files = tuple((path, k) for k, name in enumerate(names) for path in _images(root / name))
        need(len(files) > 0, "there must be at least one image", folder=str(root))
        object.__setattr__(self, "classes", tuple(names))
        object.__setattr__(self, "files", files)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """The images at `indices`, in their order, and their classes."""
        positions = as_positions(indices, len(self)).tolist()
        pixels = np.empty((len(positions), self.channels, *self.size), dtype=np.uint8)
        for at, position in enumerate(positions):
            pixels[at] = self._pixels(self.files[position][0])
        labels = torch.tensor([self.files[position][1] for position in positions], dtype=torch.int64)
        return torch.from_numpy(pixels).to(torch.get_default_dtype()).div_(255), labels

    def blocks(self) -> Iterator[bytes | memoryview]:
        """Names, classes and digests of all files, for a fingerprint."""
        yield repr((self.size, self.channels, self.classes)).encode()
        for path, label in self.track(self.files, len(self.files), "fingerprint of the images"):
            name = Path(path)
            yield f"{name.name} {label} {hashlib.sha256(name.read_bytes()).hexdigest()}".encode()

    def _pixels(self, path: str) -> npt.NDArray[np.uint8]:
        """One image as bytes (C, H, W)."""
        from PIL import Image

        try:
            with Image.open(path) as image:
                height, width = self.size
                plain = image.convert(_MODES[self.channels]).resize((width, height), Image.Resampling.BILINEAR)
        except (
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
        ) as error:
            raise InputError(f"the file must be a whole image; got {path!r}: {error}; remove or repair it") from error
        found = np.asarray(plain, dtype=np.uint8)
        return found[None] if self.channels == 1 else np.moveaxis(found, 2, 0)


def _images(folder: Path) -> list[str]:
    """The images of one class by name; hidden files do not count, others are refused."""
    names = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    for name in names:
        known = name.is_file() and name.suffix.lower() in SUFFIXES
        need(known, f"a class's folder holds images ({', '.join(SUFFIXES)}) only", got=str(name), remedy="move it away")
    return [str(name) for name in names]
