"""Image files: read exactly, refused with the reason when they are not what they say; public files come unpacked."""

import gzip
import hashlib
import io
import struct
import tarfile

import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import public
from dpsrm.data.images import read_cifar, read_idx, read_idx_pair, scaled
from dpsrm.data.public import PublicFile, image_files


def idx(shape, values, *, kind=8):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(values)


def test_idx_files_are_read_in_their_shape(tmp_path):
    (tmp_path / "images").write_bytes(idx((2, 2, 3), range(12)))
    (tmp_path / "labels").write_bytes(idx((2,), [7, 3]))
    pixels, labels = read_idx_pair(tmp_path / "images", tmp_path / "labels")
    assert pixels.shape == (2, 1, 2, 3)
    assert pixels.dtype == torch.uint8
    assert pixels[1, 0].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert labels.tolist() == [7, 3]
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "begins with"),
        (b"\x1f\x8b\x08\x08 still packed", "begins with"),
        (idx((2,), [1, 2], kind=13), "begins with"),
        (idx((2, 2), range(4))[:9], "whole header"),
        (idx((2, 2), range(3)), "says=4"),
        (idx((2, 2), range(5)), "has=5"),
        (idx((2**31, 2**31, 2**31), []), "says"),
    ],
)
def test_what_is_no_idx_file_is_refused(tmp_path, content, reason):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_idx(tmp_path / "file")


def test_images_and_labels_must_fit(tmp_path):
    (tmp_path / "images").write_bytes(idx((2, 1, 1), [0, 1]))
    (tmp_path / "labels").write_bytes(idx((3,), [7, 3, 1]))
    with pytest.raises(InputError, match="as many labels as images"):
        read_idx_pair(tmp_path / "images", tmp_path / "labels")
    with pytest.raises(InputError, match="three axes"):
        read_idx_pair(tmp_path / "labels", tmp_path / "labels")
    with pytest.raises(InputError, match="cannot read"):
        read_idx(tmp_path / "none")


def test_cifar_files_are_read_in_a_row(tmp_path):
    """Label, then 1024 red, 1024 green, 1024 blue bytes, row by row; of two labels the last, fine one counts."""
    one = bytes([3]) + bytes([10] * 1024 + [20] * 1024 + [30] * 1023 + [31])
    (tmp_path / "a").write_bytes(one)
    (tmp_path / "b").write_bytes(one + bytes([9]) + bytes(3072))
    pixels, labels = read_cifar([tmp_path / "a", tmp_path / "b"], labels=1, classes=10)
    assert pixels.shape == (3, 3, 32, 32)
    assert labels.tolist() == [3, 3, 9]
    assert [int(pixels[0, c, 31, 31]) for c in range(3)] == [10, 20, 31]
    (tmp_path / "fine").write_bytes(bytes([1, 77]) + bytes(3072))
    assert read_cifar([tmp_path / "fine"], labels=2, classes=100)[1].tolist() == [77]
    with pytest.raises(InputError, match="whole records of 3074"):
        read_cifar([tmp_path / "a"], labels=2, classes=100)
    with pytest.raises(InputError, match="largest=77"):
        read_cifar([tmp_path / "fine"], labels=2, classes=77)


def test_pixels_are_scaled_record_by_record():
    pixels = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
    all_at_once = scaled(pixels, centre=0.5, spread=0.25)
    assert torch.equal(scaled(pixels[1:2], centre=0.5, spread=0.25), all_at_once[1:2])
    assert all_at_once.min() == -2
    assert all_at_once.max() == 2


def test_downloads_are_unpacked_and_checked(tmp_path, monkeypatch):
    content = b"the file"
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("inside/b")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    home = f"file://{tmp_path}"
    files = (
        PublicFile("x/a", digest, f"{home}/a.gz"),
        PublicFile("x/b", digest, f"{home}/b.tar.gz", "inside/b"),
    )
    monkeypatch.setitem(public.IMAGE_SETS, "mnist", files)
    assert [path.read_bytes() for path in image_files("mnist", tmp_path / "data")] == [content, content]
    wrong = PublicFile("x/c", digest, f"{home}/b.tar.gz", "inside/c")
    monkeypatch.setitem(public.IMAGE_SETS, "mnist", (wrong,))
    with pytest.raises(InputError, match="does not hold x/c"):
        image_files("mnist", tmp_path / "data")
    (tmp_path / "data" / "x" / "a").write_bytes(b"changed")
    monkeypatch.setitem(public.IMAGE_SETS, "mnist", files)
    with pytest.raises(InputError, match="SHA-256"):
        image_files("mnist", tmp_path / "data")
    with pytest.raises(InputError, match="cifar-100"):
        image_files("imagenet", tmp_path)
