"""The run folder: held by one, emptied only if it is a run, and never half taken."""

import os

import pytest

from dpsrm.core.errors import InputError
from dpsrm.core.files import hold_lock
from dpsrm.runs import RunFolder


def test_a_folder_is_held_by_one(tmp_path):
    """Two holders in one process are two as well (threads)."""
    folder = RunFolder(tmp_path / "run")
    with folder.create():
        for take in (folder.hold, lambda: folder.create(overwrite=True)):
            with pytest.raises(InputError, match="another process trains"), take():
                pass
    with folder.hold():
        pass


def test_overwriting_keeps_folder_and_lock_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.create():
        (folder.private / "reference" / "private").mkdir(parents=True)
        for path in (*folder.bound, folder.ledger, folder.keys, folder.private / "reference" / "model.safetensors"):
            path.write_text("old")
        before = folder.path.stat().st_ino, folder.lock.stat().st_ino
    with folder.create(overwrite=True):
        assert (folder.path.stat().st_ino, folder.lock.stat().st_ino) == before
        assert sorted(path.name for path in folder.path.rglob("*")) == ["README.txt", "lock", "private"]


def test_what_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="only a run folder"), RunFolder(tmp_path).create(overwrite=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_run_among_other_things_is_left_alone(tmp_path):
    """Whoever kept a table in a run folder lost it by --overwrite; a run inside another lost its ledger."""
    run, inner = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run" / "inner")
    with run.create():
        run.ledger.write_text("charges")
        run.config.write_text("settings")
    (run.path / "my.csv").write_text("years of work")
    with pytest.raises(InputError, match=r"only a run folder.*others=\['my.csv'\]"), run.create(overwrite=True):
        pass
    assert (run.path / "my.csv").exists()
    assert run.ledger.read_text() == "charges"
    with pytest.raises(InputError, match="keeps it from verifying"), inner.create():
        pass
    with RunFolder(run.private / "reference").create():
        pass
    (tmp_path / "link").symlink_to(run.path)
    with pytest.raises(InputError, match="keeps it from verifying"), RunFolder(tmp_path / "link" / "a" / "b").create():
        pass


def test_a_refused_overwrite_changes_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.create():
        folder.ledger.write_text("charges")
        with pytest.raises(InputError, match="another process"), folder.create(overwrite=True):
            pass
        assert folder.ledger.read_text() == "charges"
    with pytest.raises(InputError, match="must not exist"), folder.create():
        pass


def test_a_lock_file_that_was_removed_is_nobodys(tmp_path, monkeypatch):
    """Opened before and locked after its holder removed it: the name is free, but this is no longer the lock."""
    path = tmp_path / "run" / "private" / "lock"
    path.parent.mkdir(parents=True)
    original = os.open

    def removed_meanwhile(*arguments, **options):
        handle = original(*arguments, **options)
        path.unlink()
        return handle

    monkeypatch.setattr(os, "open", removed_meanwhile)
    with pytest.raises(InputError, match="another process"), hold_lock(path):
        pass
