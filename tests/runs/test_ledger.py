"""The ledger: what is written is what is read, and nothing can be changed, dropped or reordered unnoticed."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsrm.core.errors import LedgerError
from dpsrm.core.events import Adjacency, GaussianRelease, PureRelease, Sampling, Scheme, Spending, UnprotectedRelease
from dpsrm.core.files import GENESIS
from dpsrm.core.isolation import Isolation
from dpsrm.runs.ledger import Closing, Header, Ledger, mend_ledger, read_ledger

HEADER = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=1.0, delta=1e-5, accountant="rdp", private_randomness=True)
GAUSS = GaussianRelease(noise_multiplier=1.1, sampling=Sampling(scheme=Scheme.WOR, population=100, batch=10))

CLOSING = Closing(
    released=7, unit="one record", isolation=Isolation.ALONE, engine="loop", files={"model.safetensors": "ab" * 32}
)


def written(path):
    with Ledger(path, HEADER) as ledger:
        ledger.charge(GAUSS, 3)
        ledger.charge(PureRelease(epsilon=0.1), 1)
        ledger.charge(GAUSS, 4)
        ledger.close(CLOSING)
    return path


def test_what_is_written_is_read(tmp_path):
    facts = read_ledger(written(tmp_path / "ledger.jsonl"))
    assert facts.header == HEADER
    assert facts.spending == Spending.of([], adjacency=HEADER.adjacency).plus(GAUSS, 7).plus(
        PureRelease(epsilon=0.1), 1
    )
    assert facts.closed
    assert facts.closing == CLOSING
    assert facts.released == 7
    assert facts.lines == 5


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return written(tmp_path_factory.mktemp("ledger") / "ledger.jsonl").read_bytes()


@settings(derandomize=True, max_examples=300, deadline=None)
@given(data=st.data())
def test_changing_any_one_byte_is_noticed(good, tmp_path_factory, data):
    where = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda b: b != good[where]))
    path = tmp_path_factory.mktemp("changed") / "ledger.jsonl"
    path.write_bytes(good[:where] + bytes([other]) + good[where + 1 :])
    with pytest.raises(LedgerError):
        read_ledger(path)


def test_dropping_or_swapping_lines_is_noticed(good, tmp_path):
    lines = good.splitlines(keepends=True)
    path = tmp_path / "ledger.jsonl"
    for broken in (
        lines[1:],
        lines[:1] + lines[2:],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines, lines[-1]],
        [],
    ):
        path.write_bytes(b"".join(broken))
        with pytest.raises(LedgerError):
            read_ledger(path)


def test_a_torn_last_line_is_noticed(good, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(good[:-20])
    with pytest.raises(LedgerError, match="torn"):
        read_ledger(path)


def test_a_last_line_that_only_lost_its_line_end_counts(good, tmp_path):
    """Its hash proves that it is whole: something may have been released from it."""
    path = tmp_path / "ledger.jsonl"
    charges = b"".join(good.splitlines(keepends=True)[:-1])
    for content, releases in ((charges[:-1], 8), (charges[:-2], 4), (charges + b'{"bo', 8)):
        path.write_bytes(content)
        assert read_ledger(path, torn=True).spending.releases == releases
        with pytest.raises(LedgerError, match="torn"):
            read_ledger(path)
        with Ledger.reopen(path, HEADER, after=(0, GENESIS)) as ledger:
            assert ledger.spending.releases == releases
            assert read_ledger(path).spending.releases == releases
            ledger.charge(GAUSS, 1)
        assert read_ledger(path).spending.releases == releases + 1


def test_a_closing_line_that_only_lost_its_line_end_closes(good, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(good[:-1])
    assert read_ledger(path, torn=True).closed
    with pytest.raises(LedgerError, match="finished"):
        Ledger.reopen(path, HEADER, after=(0, GENESIS))
    mend_ledger(path)
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    "bad",
    [
        {"released": 1.5},
        {"unit": None},
        {"isolation": "trusted"},
        {"engine": 3},
        {"files": {"model.safetensors": "AB" * 32}},
        {"files": [1]},
    ],
)
def test_a_malformed_closing_line_is_refused(tmp_path, bad):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, HEADER) as ledger:
        ledger._append({**CLOSING.to_json(), **bad})
    with pytest.raises(LedgerError, match="closing line"):
        read_ledger(path)


def test_the_head_before_the_closing_line_is_known(good, tmp_path):
    """What a certificate quotes: it cannot quote the line that binds it."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(good)
    closed = read_ledger(path)
    path.write_bytes(b"".join(good.splitlines(keepends=True)[:-1]))
    unclosed = read_ledger(path)
    assert closed.charged == unclosed.charged == (unclosed.lines, unclosed.head)
    assert closed.head != unclosed.head


def test_a_ledger_is_never_written_over(tmp_path):
    path = written(tmp_path / "ledger.jsonl")
    with pytest.raises(FileExistsError):
        Ledger(path, HEADER)


def test_each_line_is_on_disk_before_charge_returns(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    with Ledger(tmp_path / "ledger.jsonl", HEADER) as ledger:
        before = len(synced)
        ledger.charge(GAUSS, 1)
        assert len(synced) == before + 1
        assert len((tmp_path / "ledger.jsonl").read_bytes().splitlines()) == 2


def test_a_failed_write_raises_and_counts_nothing(tmp_path, monkeypatch):
    with Ledger(tmp_path / "ledger.jsonl", HEADER) as ledger:
        monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LedgerError, match="No space left"):
            ledger.charge(GAUSS, 1)
        assert ledger.spending.releases == 0


def test_a_charge_of_an_unknown_kind_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, HEADER) as ledger:
        ledger._append({"kind": "charge", "event": {"kind": "laplace"}, "count": 1})
    with pytest.raises(LedgerError, match="laplace"):
        read_ledger(path)


def test_lines_are_json(good):
    for line in good.splitlines():
        assert set(json.loads(line)) == {"body", "hash", "index"}


def test_unprotected_releases_are_read_back(tmp_path):
    with Ledger(tmp_path / "l", HEADER) as ledger:
        ledger.charge(UnprotectedRelease(what="exact"), 2)
    assert read_ledger(tmp_path / "l").spending.charges[0].event == UnprotectedRelease(what="exact")
