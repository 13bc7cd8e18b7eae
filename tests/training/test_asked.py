"""What one's own loop asked is on disk before it is answered."""

import os

import pytest
import torch

from dpsrm.core.errors import ResumeError
from dpsrm.core.randomness import Streams
from dpsrm.gradients import Part, Query
from dpsrm.methods import Ask
from dpsrm.training.asked import AskedLog


def ask(value=1.0, clip=1.0):
    point = torch.full((3,), value)
    return Ask(query=Query(points=(point,), parts=(Part(coefficients=(1.0,), clip=clip),)), batch=2)


BATCH = {"x": torch.ones(2, 3)}


def test_each_question_is_synced_before_note_returns(tmp_path, monkeypatch):
    sizes, real = [], os.fsync
    path = tmp_path / "asked.jsonl"
    monkeypatch.setattr(os, "fsync", lambda handle: (real(handle), sizes.append(path.stat().st_size))[0])
    with AskedLog(path, Streams.seeded(1)) as log:
        for release in range(3):
            log.note(release, ask(release), BATCH)
            assert sizes[-1] == path.stat().st_size
            assert len(path.read_text().splitlines()) == release + 1
        before = len(sizes)
        log.note(1, ask(1), BATCH)
    assert len(sizes) == before == 4


@pytest.mark.parametrize("torn", ["", "[1,", '[1, "ab"]'])
def test_it_is_remembered_and_a_torn_line_was_never_answered(tmp_path, torn):
    path = tmp_path / "asked.jsonl"
    with AskedLog(path, Streams.seeded(1)) as log:
        log.note(0, ask(), BATCH)
    with path.open("a") as file:
        file.write(torn)
    with AskedLog(path, Streams.seeded(1)) as log:
        log.note(0, ask(), BATCH)
        log.note(1, ask(5), BATCH)
        for other in (ask(2), ask(clip=2.0)):
            with pytest.raises(ResumeError, match="release 0 was made before"):
                log.note(0, other, BATCH)
        with pytest.raises(ResumeError):
            log.note(0, ask(), {"x": torch.zeros(2, 3)})
    assert len(path.read_text().splitlines()) == 2


def test_digests_say_nothing_without_the_key(tmp_path):
    texts = []
    for seed in (1, 2):
        with AskedLog(tmp_path / f"{seed}.jsonl", Streams.seeded(seed)) as log:
            log.note(0, ask(), BATCH)
        texts.append((tmp_path / f"{seed}.jsonl").read_text())
    assert texts[0] != texts[1]


def test_nothing_asked_is_lost_when_reopening_dies(tmp_path, monkeypatch):
    path = tmp_path / "asked.jsonl"
    with AskedLog(path, Streams.seeded(1)) as log:
        log.note(0, ask(), BATCH)
    before = path.read_bytes()

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        patch.setattr(os, "fsync", die)
        with pytest.raises(KeyboardInterrupt):
            AskedLog(path, Streams.seeded(1))
    assert path.read_bytes() == before
