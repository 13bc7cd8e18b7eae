"""Guards of the chain that the other tests of the ledger would not miss."""

import pytest

from dpsrm.core.errors import LedgerError
from dpsrm.core.files import GENESIS, Chain, read_chain


def written(path, *bodies):
    chain = Chain.create(path)
    for body in bodies:
        chain.append(body)
    chain.close()
    return path.read_bytes().splitlines(keepends=True)


def test_a_line_of_another_chain_does_not_fit(tmp_path):
    """Right index, right hash of its own body: still it belongs to another past."""
    ours = written(tmp_path / "a", {"header": 1}, {"charge": 5}, {"charge": 6})
    other = written(tmp_path / "b", {"header": 2}, {"charge": 1}, {"charge": 6})
    for spliced in ([ours[0], other[1], ours[2]], [ours[0], ours[1], other[2]], [other[0], ours[1], ours[2]]):
        path = tmp_path / "spliced"
        path.write_bytes(b"".join(spliced))
        with pytest.raises(LedgerError, match="chain is broken"):
            read_chain(path)


def test_the_head_depends_on_every_line(tmp_path):
    heads = set()
    for first in (1, 2):
        written(tmp_path / str(first), {"a": first}, {"b": 0})
        heads.add(read_chain(tmp_path / str(first)).head)
    assert len(heads) == 2


def test_one_writer_at_a_time(tmp_path):
    chain = Chain.create(tmp_path / "c")
    try:
        with pytest.raises(LedgerError, match="another process"):
            Chain.reopen(tmp_path / "c")
    finally:
        chain.close()


def test_after_a_failed_write_nothing_more_is_taken(tmp_path, monkeypatch):
    import os

    chain = Chain.create(tmp_path / "c")
    chain.append({"a": 1})
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(LedgerError, match="nothing was released"):
            chain.append({"a": 2})
    with pytest.raises(LedgerError, match="an earlier write"):
        chain.append({"a": 3})
    chain.close()
    assert [body["a"] for body in read_chain(tmp_path / "c").bodies] == [1]


def test_a_chain_extends_what_was_seen_of_it_and_nothing_else(tmp_path):
    written(tmp_path / "c", {"a": 1}, {"a": 2}, {"a": 3})
    lines = read_chain(tmp_path / "c")
    seen = list(enumerate((GENESIS, *lines.hashes)))
    assert all(lines.extends(count, head) for count, head in seen)
    assert not any(lines.extends(count + 1, head) for count, head in seen)
    assert not any(lines.extends(count - 1, head) for count, head in seen)
    assert not lines.extends(4, lines.head)
