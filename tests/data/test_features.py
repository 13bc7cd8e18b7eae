"""Features of images: what they are, that each image's are made of it alone, kept once, and used from end to end."""

import math
import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import SHARED
from dpsrm.core.errors import InputError
from dpsrm.data import features, load, photos
from dpsrm.data.features import EXTRACTORS, ImageFeatures
from dpsrm.data.hog import hog
from dpsrm.data.images import read_cifar
from dpsrm.data.public import image_files
from dpsrm.data.scattering import scattering
from dpsrm.training import load_run

KINDS = sorted(EXTRACTORS)
TABLES = [
    torch.tensor([float(word) for word in words.split()], dtype=torch.float64)
    for words in (photos._MEANS, photos._SPREADS)
]


def images(n=5, shape=(3, 16, 16), seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8))


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_has_length_one_and_its_own_features(kind):
    """Neighbours are anything: another image beside it, or none, changes no bit of a record's features."""
    pixels, maker = images(), ImageFeatures(kind=kind)
    found = maker.of(pixels)
    assert found.shape == (5, maker.count((3, 16, 16)))
    assert torch.allclose(found.norm(dim=1), torch.ones(5), atol=2e-3)
    other = torch.cat([images(seed=1)[:2], pixels[2:]])
    assert torch.equal(maker.of(other)[2:], found[2:])
    assert torch.equal(maker.of(pixels[3:]), found[3:])
    assert not torch.equal(maker.of(other)[:2], found[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_one_colour_has_features(kind):
    assert bool(torch.isfinite(ImageFeatures(kind=kind).of(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8))).all())


def test_images_go_one_by_one_where_places_matter(monkeypatch):
    seen = []

    def place(shape):
        def extract(x):
            seen.append(len(x))
            return x.repeat(1, 3, 1, 1) * (1 + torch.arange(len(x))[:, None, None, None] * torch.rand(3, 8, 8))

        return extract

    monkeypatch.setitem(features.EXTRACTORS, "place", place)
    found = ImageFeatures(kind="place").of(images(3, (1, 8, 8)))
    assert seen == [features.PIECE, 1, 1, 1]
    assert torch.equal(found[1:], ImageFeatures(kind="place").of(images(3, (1, 8, 8))[1:]))


def test_places_are_tried_without_a_record(monkeypatch):
    """Whether images go one by one must not follow from a record: what is tried is the same for other images."""
    tried = []

    def plain(shape):
        def extract(x):
            tried.append(x.clone())
            return x.repeat(1, 3, 1, 1)

        return extract

    monkeypatch.setitem(features.EXTRACTORS, "plain", plain)
    seen = []
    for seed in (0, 1):
        ImageFeatures(kind="plain").of(images(3, (1, 8, 8), seed=seed))
        seen.append(torch.cat(tried[:-1]))
        tried.clear()
    assert torch.equal(*seen)
    assert len(seen[0]) == 4 * features.PIECE


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [(".dpsrm-features", None, 0o700), ("kept", None, 0o700), (".dpsrm-features", 0o755, 0o700), ("own", 0o755, 0o755)],
)
def test_the_folder_of_features_is_the_owners(tmp_path, name, before, after):
    """Names of files in it are fingerprints of the images; a folder that the user made keeps its mode."""
    folder, pixels = tmp_path / name, images(2, (1, 16, 16))
    ImageFeatures(kind="hog", cache=folder).of(pixels)
    for _ in range(2):  # features that are made, and features that are found
        if before is not None:
            folder.chmod(before)
            ImageFeatures(kind="hog", cache=folder).of(pixels)
        assert stat.S_IMODE(folder.stat().st_mode) == after


def test_histograms_of_gradients_against_loops():
    """The definition, pixel by pixel: the strongest channel votes for two directions; 4 × 4 cells, 2 × 2 blocks."""
    image = images(1, (2, 12, 8))[0].double() / 255
    votes = np.zeros((9, 12, 8))
    for i in range(12):
        for j in range(8):
            best, angle = -1.0, 0.0
            for channel in image:
                right = float(channel[i, j + 1] - channel[i, j - 1]) if 0 < j < 7 else 0.0
                down = float(channel[i + 1, j] - channel[i - 1, j]) if 0 < i < 11 else 0.0
                if math.hypot(right, down) > best:
                    best, angle = math.hypot(right, down), math.atan2(down, right) % math.pi
            place = angle / math.pi * 9
            votes[int(place) % 9, i, j] += best * (1 - place % 1)
            votes[(int(place) + 1) % 9, i, j] += best * (place % 1)
    cells = votes.reshape(9, 3, 4, 2, 4).mean((2, 4))
    blocks = np.stack([cells[:, i : i + 2, 0:2].reshape(36) for i in range(2)], axis=1)
    wanted = blocks / np.sqrt((blocks**2).sum(0) + 1e-6)
    found = hog((2, 12, 8))(image[None].float())[0].reshape(36, 2)
    assert np.allclose(found, wanted, atol=1e-5)


def test_scattering_is_kymatios():
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    pixels = images(2, (1, 16, 16))
    maps = ScatteringTorch2D(J=2, shape=(16, 16))(pixels.float() / 255).reshape(2, 27, 3, 4, 4).double()
    centred = maps - maps.mean((2, 3, 4), keepdim=True)
    flat = (centred / (centred.square().mean((2, 3, 4), keepdim=True) + 1e-5).sqrt()).reshape(2, -1)
    wanted = flat / flat.norm(dim=1, keepdim=True)
    assert torch.allclose(ImageFeatures(kind="scattering").of(pixels).double(), wanted, atol=1e-3)


def test_maps_of_photographs_are_scaled_by_constants():
    """Each map has its own mean and spread, the same for every colour and every record; then the length is 1."""
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    pixels = images(2, (3, 16, 16))
    maps = ScatteringTorch2D(J=2, shape=(16, 16))(pixels.float() / 255).double()  # records, colours, maps, places
    mean, spread = (
        torch.tensor([float(word) for word in words.split()]).double().reshape(81, 1, 1)
        for words in (photos._MEANS, photos._SPREADS)
    )
    flat = ((maps - mean) / spread).reshape(2, -1)
    wanted = flat / flat.norm(dim=1, keepdim=True)
    assert torch.allclose(ImageFeatures(kind="scattering-photos").of(pixels).double(), wanted, atol=1e-4)


def map_constants(pixels):
    """Where the constants come from: means and spreads of the 81 maps over images, colours and places."""
    extract, colours = scattering(tuple(pixels.shape[1:])), pixels.shape[1]
    maps = torch.cat([extract(piece.float() / 255) for piece in torch.split(pixels, 128)])
    paths = maps.reshape(len(maps), colours, -1, *maps.shape[2:]).transpose(0, 2).flatten(1).double()
    return paths.mean(1), paths.std(1)


@pytest.mark.skipif(not SHARED.exists(), reason="../shared is not here")
def test_the_constants_are_those_of_public_photographs(tmp_path):
    """Of 400 images of CIFAR-100, the constants are within what 400 of 3000 images tell."""
    prepare = [sys.executable, SHARED / "data" / "prepare", tmp_path, "cifar-100"]
    subprocess.run([str(word) for word in prepare], check=True, capture_output=True)
    pixels, _ = read_cifar(image_files("cifar-100", tmp_path)[:1], labels=2, classes=100)
    found = map_constants(pixels[:400])
    for kept, each in zip(TABLES, found, strict=True):
        assert torch.allclose(each, kept, rtol=0.15)
        assert float((each / kept - 1).abs().median()) < 0.05


def test_features_are_kept_for_their_owner_and_found_again(tmp_path, monkeypatch):
    pixels, titles = images(), []

    def track(items, total, title):
        titles.append((total, title))
        return items

    first = ImageFeatures(kind="hog", cache=tmp_path / "kept", track=track).of(pixels)
    (file,) = (tmp_path / "kept").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert torch.equal(ImageFeatures(kind="hog", cache=tmp_path / "kept", track=track).of(pixels), first)
    assert titles == [(1, "hog features")]
    changed = pixels.clone()
    changed[4, 2, 15, 15] ^= 1
    ImageFeatures(kind="hog", cache=tmp_path / "kept", track=track).of(changed)
    monkeypatch.setattr(features, "RULES", features.RULES + 1)
    ImageFeatures(kind="hog", cache=tmp_path / "kept", track=track).of(pixels)
    assert len(titles) == 3


def test_kept_features_that_are_not_what_was_written_are_made_again(tmp_path, caplog):
    """Another file's, a changed number, a file cut short, one without a digest: none is ever used."""
    maker = ImageFeatures(kind="hog", cache=tmp_path)
    one, other, longer = images(5), images(5, seed=1), images(7)
    wanted = maker.of(one)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    assert len(path.stem) == len("hog-") + 64, "all of the SHA-256"
    elsewhere = {maker._kept_at(pixels): maker.of(pixels) for pixels in (other, longer)}
    changed = bytearray(whole)
    changed[-2000] ^= 1
    plain = tmp_path / "plain"
    save_file({"features": torch.zeros(wanted.shape).half()}, plain)
    empty = tmp_path / "empty"
    save_file({"others": torch.zeros(1)}, empty)
    save_file({"features": torch.zeros(wanted.shape).bfloat16()}, tmp_path / "brain", metadata={"sha256": "0"})
    files = (*elsewhere, plain, empty, tmp_path / "brain")
    for wrong in (*(each.read_bytes() for each in files), changed, whole[:1000], b"", b"x" * 300):
        path.write_bytes(wrong)
        caplog.clear()
        assert torch.equal(maker.of(one), wanted)
        assert len(caplog.messages) == 1
        assert "made again" in caplog.text
        assert path.read_bytes() == whole
    caplog.clear()
    assert torch.equal(maker.of(one), wanted)
    assert not caplog.messages


def test_a_linked_folder_keeps_its_mode(tmp_path):
    """Who made a link there may share what it leads to."""
    target = tmp_path / "target"
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    (tmp_path / ".dpsrm-features").symlink_to(target)
    ImageFeatures(kind="hog", cache=tmp_path / ".dpsrm-features").of(images(1))
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    (file,) = target.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ImageFeatures(kind="resnet"), "scattering, scattering-photos, hog"),
        (lambda: ImageFeatures(kind="hog").of(torch.zeros(2, 1, 8, 8)), "bytes"),
        (lambda: ImageFeatures(kind="hog").of(images(2, (8, 8))), "(N, C, H, W)"),
        (lambda: ImageFeatures(kind="hog").of(images(0)), "(N, C, H, W)"),
        (lambda: ImageFeatures(kind="hog").of(images(1, (1, 4, 4))), "8 × 8"),
        (lambda: ImageFeatures(kind="scattering").of(images(1, (1, 4, 4))), "8 × 8"),
    ],
)
def test_what_is_no_image_is_refused(make, word):
    with pytest.raises(InputError) as error:
        make()
    assert word in str(error.value)


def digits(path, n=400, seed=0):
    """Bars across or down, at a random place, in noise: what pixels alone tell a linear model nothing about."""
    stream = np.random.default_rng(seed)
    pixels = stream.integers(0, 60, (n, 16, 16))
    labels = stream.integers(0, 2, n)
    for image, label, at in zip(pixels, labels, stream.integers(1, 15, n), strict=True):
        (image if label else image.T)[at] += 180
    np.savez(path, X=pixels.astype(np.uint8), y=labels)
    return path


def test_from_images_to_predictions(dpsrm, tmp_path):
    data, other = digits(tmp_path / "a.npz", 2000), digits(tmp_path / "b.npz", 300, seed=1)
    run = tmp_path / "run"
    command = ["train", "--data", data, "--test", other, "--epsilon", 3, "--delta", 1e-5, "--seed", 1, "--out", run]
    done = dpsrm(*command, "--set", "data.features=hog", "--json")
    assert done.code == 0, done.stderr
    assert '"error": 0.0' in done.stdout
    assert len(list((tmp_path / ".dpsrm-features").iterdir())) == 2
    told = dpsrm("predict", run, "--data", other)
    assert told.code == 0, told.stderr
    assert "hog features" in told.stderr, "the bar"
    right = [line == str(y) for line, y in zip(told.stdout.split()[1:], np.load(other)["y"], strict=True)]
    assert np.mean(right) > 0.9
    pixels = np.load(other)["X"]
    assert torch.equal(load_run(run).outputs(pixels), load_run(run).outputs(other))


def test_features_are_for_images(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(InputError, match="images only"):
        load(table, "y", features="hog")
    np.savez(tmp_path / "flat.npz", X=np.zeros((3, 4)), y=[0, 1, 0])
    with pytest.raises(InputError, match=r"\(C, H, W\)"):
        load(tmp_path / "flat.npz", features="hog")
    np.savez(tmp_path / "half.npz", X=np.full((3, 8, 8), 0.5), y=[0, 1, 0])
    with pytest.raises(InputError, match="uint8"):
        load(tmp_path / "half.npz", features="hog")
