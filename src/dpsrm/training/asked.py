"""What every release of one's own loop asked, so that its noise is never made again for another question.

`train` binds everything a release depends on by its settings. In one's own loop the learning rate, its schedule and the
data set are the user's: after a crash, or back at an earlier state, they might be others. The same noise on another
sum would reveal their difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dpsrm.core.errors import ResumeError
from dpsrm.core.files import write_atomically
from dpsrm.core.randomness import Streams
from dpsrm.core.tree import leaves
from dpsrm.gradients import Batch
from dpsrm.methods import Ask, Choice
from dpsrm.training.checkpoint import bytes_of
from dpsrm.training.strategy import OneProcess, Strategy


class AskedLog:
    """A file in `private/` with a keyed digest of each release's question and batch, on disk before it is answered."""

    def __init__(self, path: Path, streams: Streams, ranks: Strategy | None = None) -> None:
        """Read what was asked before, if anything; a torn last line was never answered. The leader keeps the file."""
        self._streams, self._ranks = streams, ranks or OneProcess()
        self._known: dict[int, str] = {}
        if not self._ranks.leader:
            path = Path(os.devnull)
        elif path.exists():
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    release, digest = json.loads(line)
                    self._known[release] = digest
            kept = "".join(json.dumps(item) + "\n" for item in self._known.items())
            write_atomically(path, kept.encode(), mode=0o600)  # never truncated: what was asked must not be lost
        self._file = path.open("a")
        self._sync()

    def note(self, release: int, ask: Ask | Choice, batch: Batch) -> None:
        """Keep what release number `release` asks; `ResumeError` if it was made before and asked something else."""
        digests = self._ranks.gathered(self._streams.tag(_pieces(ask, batch)))
        digest = digests[0] if len(digests) == 1 else self._streams.tag([each.encode() for each in digests])
        with self._ranks.together():
            if self._ranks.leader:
                self._note(release, digest)

    def _note(self, release: int, digest: str) -> None:
        """Keep one digest, of what all ranks ask."""
        known = self._known.get(release)
        if known is None:
            self._file.write(json.dumps([release, digest]) + "\n")
            self._sync()
            self._known[release] = digest
        elif known != digest:
            raise ResumeError(
                f"release {release} was made before, from other parameters or records: the loop does not go the way it "
                "went (another learning rate, a scheduler that was not restored, other data); nothing was released; "
                "restore them, or finish() here"
            )

    def __len__(self) -> int:
        """How many releases were asked for."""
        return len(self._known)

    def __enter__(self) -> AskedLog:
        """Keep the file open for a while."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the file."""
        self._file.close()

    def _sync(self) -> None:
        """Wait until the file is on disk."""
        self._file.flush()
        if self._ranks.leader:
            os.fsync(self._file.fileno())


def _pieces(ask: Ask | Choice, batch: Batch) -> list[Any]:
    """All that the answer depends on but the key, as bytes."""
    if isinstance(ask, Ask):
        points, rest = ask.query.points, repr((ask.query.parts, ask.query.excess, ask.batch, ask.rho))
    elif isinstance(ask, Choice):
        points, rest = ask.points, repr((ask.offsets, ask.clip, ask.batch, ask.rho, ask.selection))
    else:
        raise AssertionError(ask)
    return [rest.encode(), *(bytes_of(tensor) for tensor in (*points, *leaves(batch)))]
