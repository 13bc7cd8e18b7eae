"""What releases were made of: known again to the bit, on disk before anybody sees them, and never lost unnoticed."""

import os

import numpy as np
import pytest
import torch

from dpsrm.core.errors import DpsrmError, ResumeError
from dpsrm.core.secret import LARGE, ClippedScores, ClippedSum, Coordinates, Streams
from dpsrm.mechanisms.merge import spread
from dpsrm.mechanisms.sum_log import Fingerprints, Stopped, SumLog, begin_sums, joined, read_sums

SMALL = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def total(vector=SMALL, part=None):
    return ClippedSum(secret=vector, bound=1.0, rows=2, part=part)


def note(log, release, vector=SMALL, *, std=1.0, batch=2):
    log.need_same_sum(total(vector), release=release, std=std, batch=batch)


def opened(path, released=0, seed=1):
    return SumLog(Streams.seeded(seed), read_sums(path, released=released), path=path)


@pytest.fixture
def path(tmp_path):
    begin_sums(tmp_path / "sums.log")
    return tmp_path / "sums.log"


def test_a_line_is_written_before_its_release_and_on_disk_after_sync(path, monkeypatch):
    synced, real = [], os.fsync
    with opened(path) as log:
        monkeypatch.setattr(os, "fsync", lambda handle: (real(handle), synced.append(path.read_text().count("\n")))[0])
        for release in range(3):
            note(log, release, SMALL + release)
            assert path.read_text().count("\n") == release + 2
            assert len(synced) == release
            log.sync()
            assert synced[-1] == release + 2
        log.sync()
        note(log, 1, SMALL + 1)
        log.sync()
        assert len(synced) == 3
        note(log, 3)
    assert synced == [2, 3, 4, 5]


@pytest.mark.parametrize("torn", ["", "00", "0" * 31])
def test_it_is_remembered_and_a_torn_line_was_never_released(path, torn):
    with opened(path) as log:
        note(log, 0)
    with path.open("a") as file:
        file.write(torn)
    with opened(path, released=1) as log:
        note(log, 0)
        note(log, 1, 5 * SMALL)
        others = [{"std": 2.0}, {"batch": 3}, {"vector": SMALL * (1 + 2**-52)}, {"vector": -SMALL}]
        for other in others:
            with pytest.raises(ResumeError, match="release 0 was made before, from another sum"):
                note(log, 0, **other)
        note(log, 0)
        assert len(log) == 2
    assert len(path.read_text().splitlines()) == 3


def test_a_line_that_only_lost_its_end_counts(path):
    with opened(path) as log:
        note(log, 0)
    path.write_text(path.read_text()[:-1])
    with opened(path, released=1) as log, pytest.raises(ResumeError):
        note(log, 0, 2 * SMALL)
    assert path.read_text().endswith("\n")


def test_what_is_lost_or_changed_is_refused(path):
    with opened(path) as log:
        note(log, 0)
        note(log, 1)
    for content in ("", "\n", path.read_text() + "x\n", path.read_text().replace("sums", "sum")):
        (path.parent / "other").write_bytes(content.encode())
        with pytest.raises(ResumeError, match="changed"):
            read_sums(path.parent / "other", released=0)
    with pytest.raises(ResumeError, match="knows 2 of 3"):
        read_sums(path, released=3)
    (path.parent / "other").unlink()
    with pytest.raises(ResumeError, match="cannot be read"):
        read_sums(path.parent / "other", released=0)
    with opened(path) as log, pytest.raises(ResumeError, match="2 of 3 releases"):
        note(log, 3)


def test_a_line_that_could_not_be_written_stops_everything(path, monkeypatch):
    with opened(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: 3)
            with pytest.raises(DpsrmError, match="full"):
                note(log, 0)
        with pytest.raises(DpsrmError, match="earlier write"):
            note(log, 0)
    with opened(path) as log:
        note(log, 0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("broken")))
            with pytest.raises(DpsrmError, match="broken"):
                log.sync()
        with pytest.raises(DpsrmError, match="earlier write"):
            log.sync()


def test_choices_are_known_too(path):
    scores = ClippedScores(secret=(1.0, 2.0), bound=1.0, rows=2)
    with opened(path) as log:
        log.need_same_scores(scores, release=0, said="a")
        log.need_same_scores(scores, release=0, said="a")
        for other in ((1.0, 2.5), (2.0, 1.0), (1.0, 2.0, 0.0)):
            with pytest.raises(ResumeError):
                log.need_same_scores(ClippedScores(secret=other, bound=1.0, rows=2), release=0, said="a")
        with pytest.raises(ResumeError):
            log.need_same_scores(scores, release=0, said="b")
        with pytest.raises(ResumeError):
            log.need_same_scores(ClippedScores(secret=(1.0, 2.0), bound=2.0, rows=2), release=0, said="a")


def test_ranks_put_their_parts_together_and_the_first_ones_choice_counts():
    vector = torch.randn(2 * LARGE + 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    streams, prints = Streams.seeded(1), Fingerprints(Streams.seeded(1))
    whole = prints.of_sum(total(vector), release=4, std=1.5, batch=7)
    for ranks in (2, 3, 5):
        parts = [total(vector[at.begin : at.end], at) for at in spread(len(vector), ranks)]
        assert joined([prints.of_sum(part, release=4, std=1.5, batch=7) for part in parts]) == whole
    log = SumLog(streams, [], gathered=lambda own: [own, "ff" * 16])
    log.need_same_scores(ClippedScores(secret=(1.0,), bound=1.0, rows=1), release=0, said="")
    alone = SumLog(streams, log._known)
    alone.need_same_scores(ClippedScores(secret=(1.0,), bound=1.0, rows=1), release=0, said="")


def test_every_place_of_a_large_sum_counts():
    """Any bit of any number, numbers that change places, and blocks that do."""
    prints, dice = Fingerprints(Streams.seeded(1)), np.random.default_rng(0)
    numbers = dice.standard_normal(2 * LARGE + 3)
    seen = {prints.of_sum(total(torch.from_numpy(numbers)), release=0, std=1.0, batch=1)}
    places = [0, LARGE - 1, LARGE, 2 * LARGE + 2]
    others = [(place, bit) for place in places for bit in (0, 31, 32, 51, 52, 63)]
    for place, bit in others:
        changed = numbers.copy()
        changed.view(np.uint64)[place] ^= np.uint64(1) << np.uint64(bit)
        seen.add(prints.of_sum(total(torch.from_numpy(changed)), release=0, std=1.0, batch=1))
    swapped, moved = numbers.copy(), numbers.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    moved[:LARGE], moved[LARGE : 2 * LARGE] = numbers[LARGE : 2 * LARGE], numbers[:LARGE]
    for changed in (swapped, moved, np.append(numbers, 0.0)):
        seen.add(prints.of_sum(total(torch.from_numpy(changed)), release=0, std=1.0, batch=1))
    for release, std, batch in ((1, 1.0, 1), (0, 2.0, 1), (0, 1.0, 2)):
        seen.add(prints.of_sum(total(torch.from_numpy(numbers)), release=release, std=std, batch=batch))
    assert len(seen) == 1 + len(others) + 3 + 3


def test_blocks_are_made_short_as_published():
    """NH by whole numbers of Python, under both keys."""
    from dpsrm.mechanisms.fingerprint_kernel import products

    dice = np.random.default_rng(1)
    words, keys = dice.integers(2**64, size=50, dtype=np.uint64), dice.integers(2**64, size=(2, 60), dtype=np.uint64)
    word = 2**32
    for key, found in zip(keys.tolist(), products(words, keys), strict=True):
        pairs = [((w + k) % word, (w // word + k // word) % word) for w, k in zip(words.tolist(), key, strict=False)]
        assert int(found) == sum(a * b for a, b in pairs) % 2**64


def test_lines_say_nothing_without_the_key():
    prints = [Fingerprints(Streams.seeded(seed)) for seed in (1, 2)]
    for vector in (SMALL, torch.zeros(LARGE + 1, dtype=torch.float64)):
        assert len({each.of_sum(total(vector), release=0, std=1.0, batch=1) for each in prints}) == 2
    first = prints[0]
    assert len({first.of_sum(total(), release=release, std=1.0, batch=1) for release in range(9)}) == 9
    nothing = total(SMALL[:0], Coordinates(3, 3, of=3))
    assert not any(first.of_sum(nothing, release=0, std=1.0, batch=1))


def test_nothing_is_lost_when_reopening_dies(path, monkeypatch):
    with opened(path) as log:
        note(log, 0)
    path.write_text(path.read_text() + "12")
    before = path.read_bytes()

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        patch.setattr(os, "fsync", die)
        with pytest.raises(KeyboardInterrupt):
            opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", [0, 1, 5])
def test_a_release_that_failed_is_known_until_it_was_made(path, torn):
    """Between fingerprints, in memory and on disk; a mark that was not written to its end is none."""
    with opened(path) as log:
        note(log, 0)
        log.stopped.mark(1)
        assert path.read_text().splitlines()[-1] == "failed 00000000000000000001"
        log.stopped.mark(0)
        log.stopped.made(0)
    path.write_text(path.read_text()[: -torn or None])
    with opened(path, released=1) as log:
        assert len(log) == 1
        assert log.stopped.at == (1 if torn <= 1 else None)
        note(log, 1)
        assert log.stopped.at == (1 if torn <= 1 else None)
        log.stopped.made(1)
    with opened(path, released=2) as log:
        assert (len(log), log.stopped.at) == (2, None)
        note(log, 0)


def test_of_releases_that_failed_the_last_counts():
    stopped, noted = Stopped(note=lambda mark: noted.append(mark)), []
    for release in (5, 3, 5):
        stopped.mark(release)
    stopped.made(3)
    assert (stopped.at, Stopped(noted).at) == (5, 5)
    stopped.made(5)
    stopped.made(5)
    assert (stopped.at, Stopped(noted).at) == (None, None)
    assert len(noted) == 2


def test_marks_are_no_releases(path):
    with opened(path) as log:
        log.stopped.mark(0)
        log.stopped.mark(1)
    with pytest.raises(ResumeError, match="knows 0 of 1"):
        read_sums(path, released=1)


def test_a_mark_is_on_disk_at_once(path, monkeypatch):
    synced, real = [], os.fsync
    with opened(path) as log:
        monkeypatch.setattr(os, "fsync", lambda handle: (real(handle), synced.append(path.read_text()))[0])
        log.stopped.mark(3)
        assert "failed 00000000000000000003" in synced[-1]


def test_what_failed_is_not_hidden_by_a_log_that_failed(path, monkeypatch):
    """Nor does a process that was forked off mark a release of the run it came from."""
    with opened(path) as log:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            log.stopped.mark(0)
        assert "failed" not in path.read_text()
        monkeypatch.setattr(os, "write", lambda *_: 3)
        with pytest.raises(DpsrmError, match="full"):
            note(log, 0)
        log.stopped.mark(1)
        assert log.stopped.at == 1
