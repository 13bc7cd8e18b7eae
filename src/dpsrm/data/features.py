"""Features of images that nothing was learned for: made of each image alone, so they cost no privacy.

Shapes: N images of C channels, H rows and W columns, as bytes; F features of each.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from dpsrm.core.errors import need
from dpsrm.core.tracking import Track, silent
from dpsrm.data.hog import hog
from dpsrm.data.photos import photos
from dpsrm.data.scattering import Extractor, scattering

_log = logging.getLogger(__name__)

MakeExtractor = Callable[[tuple[int, ...]], Extractor]
"""Makes the extractor for images of a shape (C, H, W)."""


def _grouped(make: MakeExtractor) -> MakeExtractor:
    """Three maps at a time centred and scaled within each record."""

    def made(shape: tuple[int, ...]) -> Extractor:
        extract = make(shape)
        return lambda images: F.group_norm(maps := extract(images), maps.shape[1] // 3)

    return made


EXTRACTORS = {"scattering": _grouped(scattering), "scattering-photos": photos, "hog": _grouped(hog)}

RULES = 1
"""Raised when the same images would get other features, so that kept ones are not mistaken for them."""
FOLDER = ".dpsrm-features"
"""Where the command line keeps features, beside the images."""
_DIGEST = "sha256"
"""Under which word a file says what it holds."""
PIECE = 128
"""Images made into features at once."""


@dataclass(frozen=True, kw_only=True)
class ImageFeatures:
    """Turns images into features, each record of length 1, without a trained weight or a statistic of the records.

    Args:
        kind: "scattering" (wavelets of two orders; needs the extra [features]); "scattering-photos", the same scaled
            by constants of public photographs instead of within each record; or "hog" (histograms of oriented
            gradients: some thirty times faster, and weaker).
        cache: a folder where features are kept as half-precision numbers, under the SHA-256 of images and rules. What
            is not as it was written is made again, and said so. They are as private as the images; a folder that is
            made for them is readable by the owner alone.
        track: shows how far it is.

    Guarantee: row i is a function of image i and public constants alone, so neighbouring sets of images have
    neighbouring features, and making them costs no privacy. Pieces have one size, and if copies of one image are not
    made into equal bits in every place of a piece, images are run one by one.

    Source: scattering as Oyallon and Mallat (2015) and, for private heads, Tramèr and Boneh (2021); histograms as
    Dalal and Triggs (2005).
    """

    kind: str
    cache: Path | None = None
    track: Track = silent

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        need(self.kind in EXTRACTORS, f"features must be one of {', '.join(EXTRACTORS)}", features=self.kind)

    def of(self, pixels: Tensor) -> Tensor:
        """Features (N, F) of images (N, C, H, W), which must be bytes.

        >>> ImageFeatures(kind="hog").of(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
        torch.Size([2, 1296])
        """
        good = pixels.ndim == 4 and pixels.dtype is torch.uint8 and len(pixels) > 0
        need(good, "images must be bytes of shape (N, C, H, W)", shape=tuple(pixels.shape), dtype=str(pixels.dtype))
        path = self._kept_at(pixels)
        kept = None if path is None else _kept(path)
        if kept is not None:
            return kept.float()
        made = torch.cat(list(self._pieces(pixels)))
        if path is not None:
            _keep(path, made)
        return made.float()

    def count(self, shape: Sequence[int]) -> int:
        """How many features an image of this shape (C, H, W) gets: a public number."""
        return _features(EXTRACTORS[self.kind](tuple(shape)), torch.zeros((1, *shape), dtype=torch.uint8)).shape[1]

    @torch.no_grad()
    def _pieces(self, pixels: Tensor) -> Iterator[Tensor]:
        """The features of one piece of images after the other, in half precision."""
        extractor = EXTRACTORS[self.kind](tuple(pixels.shape[1:]))
        each = PIECE if _placeless(extractor, pixels.shape[1:]) else 1
        pieces = torch.split(pixels, each)
        for piece in self.track(pieces, len(pieces), f"{self.kind} features"):
            filled = piece[torch.arange(each).clamp_max(len(piece) - 1)]
            yield _features(extractor, filled)[: len(piece)]

    def _kept_at(self, pixels: Tensor) -> Path | None:
        """Where the features of these images are kept, if they are."""
        if self.cache is None:
            return None
        return _made(self.cache) / f"{self.kind}-{self._fingerprint(pixels)}.safetensors"

    def _fingerprint(self, pixels: Tensor) -> str:
        """A hash of the rules and the images."""
        facts = json.dumps([self.kind, RULES, list(pixels.shape)])
        return hashlib.sha256(facts.encode() + pixels.contiguous().numpy().tobytes()).hexdigest()


def _features(extractor: Extractor, pixels: Tensor) -> Tensor:
    """Maps of some images, flat, of length 1."""
    flat = extractor(pixels.float() / 255).flatten(1)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return (flat / lengths.clamp_min(1e-12)).half()


def _placeless(extractor: Extractor, shape: torch.Size) -> bool:
    """Whether an image's features are the same bits in every place of a piece.

    Tried with made-up images, always the same: with a record's own, the answer could be another for a neighbour.
    """
    draw = torch.Generator().manual_seed(0)
    for one in torch.randint(0, 256, (4, *shape), generator=draw, dtype=torch.uint8):
        rows = _features(extractor, one.expand(PIECE, *shape))
        if not bool((rows == rows[:1]).all()):
            return False
    return True


def _made(folder: Path) -> Path:
    """The folder of features, made for the owner's eyes only: names of files are fingerprints of images.

    Edge cases: one of that name that an earlier version left open is closed; any other that exists, or that a link
    leads to, is the user's own.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.name == FOLDER and not folder.is_symlink():
        with suppress(OSError):  # somebody else's, or on a disk that is read only: features in it can be read as before
            folder.chmod(0o700)
    return folder


def _kept(path: Path) -> Tensor | None:
    """The features of a file, if there is one and it is as `_keep` wrote it under this name."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            features: Tensor = file.get_tensor("features")
            told = (file.metadata() or {}).get(_DIGEST)
    except (OSError, SafetensorError) as error:
        _log.warning("%s cannot be read (%s): features are made again", path, error)
        return None
    if told == _digest(path, features):
        return features
    _log.warning("%s is not what was written there: features are made again", path)
    return None


def _digest(path: Path, features: Tensor) -> str:
    """A hash of features, of their shape and type, and of the name they are kept under: that of their images."""
    facts = json.dumps([path.name, str(features.dtype), list(features.shape)])
    return hashlib.sha256(facts.encode() + features.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def _keep(path: Path, features: Tensor) -> None:
    """Write a file whole or not at all, for the owner's eyes only."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    save_file({"features": features.contiguous()}, part, metadata={_DIGEST: _digest(path, features)})
    part.chmod(0o600)
    part.replace(path)
