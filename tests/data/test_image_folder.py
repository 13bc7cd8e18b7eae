"""Folders of images: each image by itself, in its class; what is no image is refused by name."""

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import ImageFolder, as_records
from dpsrm.data.repeats import need_each_once
from dpsrm.training.checkpoint import record_bytes

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(3):
            pixels = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{k}.png")
    return tmp_path / "pets"


def test_images_in_their_classes(folder):
    found = ImageFolder(folder, size=(12, 10))
    assert as_records(found) is found
    x, y = found.take(np.array([4, 0, 4]))
    expected = np.asarray(Image.open(folder / "dog" / "1.png")).transpose(2, 0, 1) / 255
    assert torch.allclose(x[0], torch.tensor(expected, dtype=torch.float32))
    assert torch.equal(x[0], x[2])
    assert y.tolist() == [1, 0, 1]
    assert found.take(np.array([], dtype=int))[0].shape == (0, 3, 12, 10)
    assert ImageFolder(folder, size=(4, 6), channels=1).take(np.array([2]))[0].shape == (1, 1, 4, 6)


def test_the_fingerprint_notices_one_pixel_and_one_name(folder):
    def digest():
        return b"".join(record_bytes(ImageFolder(folder, size=(4, 4))))

    first = digest()
    assert digest() == first
    pixels = np.array(Image.open(folder / "cat" / "1.png"))
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(folder / "cat" / "1.png")
    second = digest()
    assert second != first
    (folder / "cat" / "1.png").rename(folder / "cat" / "3.png")
    assert digest() != second


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_an_image_that_is_linked_twice_is_one_record(folder, link):
    """To see a rare class more often: each link would count, and the noise hides one."""
    need_each_once(ImageFolder(folder, size=(4, 4)))
    getattr(folder / "cat" / "again.png", link)(folder / "cat" / "1.png")
    with pytest.raises(InputError, match=r"once.*dataset='ImageFolder', record=1;"):
        need_each_once(ImageFolder(folder, size=(4, 4)))


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_cut_image_is_refused_by_name(folder, keep):
    path = folder / "dog" / "2.png"
    path.write_bytes(path.read_bytes()[:keep])
    found = ImageFolder(folder, size=(12, 10))
    found.take(np.arange(5))
    with pytest.raises(InputError, match=r"whole image; got .*dog/2.png"):
        found.take(np.array([5]))


def test_what_is_no_folder_of_classes(folder, tmp_path):
    with pytest.raises(InputError, match="a folder with a folder per class"):
        ImageFolder(tmp_path / "none", size=(4, 4))
    with pytest.raises(InputError, match="two or more"):
        ImageFolder(folder / "cat", size=(4, 4))
    with pytest.raises(InputError, match="size is"):
        ImageFolder(folder, size=(4, 0))
    (folder / "cat" / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"images .* only; got .*notes.txt"):
        ImageFolder(folder, size=(4, 4))
