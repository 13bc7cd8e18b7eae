"""Images in an .npz file, encoded by features that nothing was learned for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dpsrm.core.errors import need
from dpsrm.data.arrays import Arrays
from dpsrm.data.features import RULES, ImageFeatures


@dataclass(frozen=True, kw_only=True)
class ImageEncoder:
    """Images of one public shape, (H, W) or (C, H, W), as the features that `maker` makes of each."""

    shape: tuple[int, ...]
    maker: ImageFeatures

    def __post_init__(self) -> None:
        """Refuse what is no image."""
        good = len(self.shape) in (2, 3)
        need(good, "images have the shape (H, W) or (C, H, W)", shape=self.shape, remedy="leave the features out")

    @property
    def features(self) -> int:
        """How many numbers stand for an image."""
        return self.maker.count(self._full)

    @property
    def _full(self) -> tuple[int, ...]:
        """The shape with its channels."""
        return (1, *self.shape) if len(self.shape) == 2 else self.shape

    def encode(self, source: Arrays) -> npt.NDArray[np.float32]:
        """The features of every image; pixels must be bytes."""
        got = source.x.shape[1:]
        need(got == self.shape, "images must have the shape the model was made for", shape=got, wanted=self.shape)
        bytes_ = source.x.astype(np.uint8)
        need(
            bool((bytes_ == source.x).all()),
            "pixels must be whole numbers from 0 to 255",
            remedy="save the images as bytes: X.astype('uint8')",
        )
        found: npt.NDArray[np.float32] = self.maker.of(torch.from_numpy(bytes_).reshape(-1, *self._full)).numpy()
        return found

    def describe(self) -> dict[str, object]:
        """What preprocessing knew, and why it is public."""
        return {
            "format": "images",
            "shape": list(self.shape),
            "extractor": self.maker.kind,
            "rules": RULES,
            "features": self.features,
            "normalise": True,
            "public": "only an image's shape and public constants were used; its features are made of it alone",
        }
