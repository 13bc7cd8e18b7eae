"""Records of where a budget file stood, kept outside it, so that a shorter or older copy of the file is noticed.

There are two kinds: one beside the file (FILE.head), written before any reservation is handed out, and one in
`private/` of every run that reserved. What neither they nor anything else can notice: that all of them were put back to
an older state together with the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dpsrm.core.errors import DpsrmError, LedgerError
from dpsrm.core.files import Lines, read_chain, read_limited, write_atomically

IN_RUN = Path("private") / "budget.json"
"""Where a run folder keeps the position at which it reserved."""

_LIMIT = 2**16


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a budget stood.

    Attributes:
        file: the budget file's path then.
        budget: the hash of its first line, which holds a random salt: which budget it is.
        lines, head: how many lines it had, and the hash of the last.
    """

    file: str
    budget: str
    lines: int
    head: str

    def need_reached(self, lines: Lines, *, path: Path, known_by: Path) -> None:
        """Refuse a file of this budget that does not go on from this position, and another budget in its place.

        Edge cases: a budget at another path than this one's was is not its business, unless it is the same.
        """
        if self.budget not in lines.hashes[:1]:
            if Path(self.file) == path:
                raise LedgerError(
                    f"{path} is another budget than the one that was there when {known_by} reserved in it; put that "
                    "back: what was spent stays spent; a budget for other records needs another name"
                )
        elif not lines.extends(self.lines, self.head):
            raise LedgerError(
                f"{path} is older than what was reserved in it: {known_by} knows it with {self.lines} lines, and these "
                f"are not the first {self.lines} of its {len(lines.hashes)}; put the newest copy back"
            )


def beside(path: Path) -> Path:
    """Where the position of a budget file is kept beside it."""
    return path.with_name(path.name + ".head")


def write_position(path: Path, position: Position) -> None:
    """Put `position` at `path`, for its owner's eyes."""
    write_atomically(path, (json.dumps(asdict(position)) + "\n").encode(), mode=0o600)


def read_position(path: Path) -> Position | None:
    """The position at `path`; None if there is no such file, `LedgerError` if it holds something else."""
    try:
        if not path.exists():
            return None
        body = json.loads(read_limited(path, _LIMIT))
        found = Position(file=body["file"], budget=body["budget"], lines=body["lines"], head=body["head"])
        texts = (found.file, found.budget, found.head)
        if type(found.lines) is not int or not all(isinstance(text, str) for text in texts):
            raise ValueError("a number and texts are needed")
    except (OSError, KeyError, TypeError, ValueError, RecursionError, DpsrmError) as error:
        raise LedgerError(f"{path} does not say where a budget stood: {str(error)[:200]}") from error
    return found


def positions_near(runs: Iterable[Path]) -> Iterator[tuple[Path, Position]]:
    """The positions kept by run folders that lie beside any of `runs`; what cannot be read is left out."""
    for parent in sorted({run.parent for run in runs}):
        for folder in sorted(parent.glob("*")):
            try:
                position = read_position(folder / IN_RUN)
            except DpsrmError:
                continue
            if position is not None:
                yield folder, position


def need_newest(lines: Lines, path: Path, *, kept: Position | None, known: Iterable[tuple[Path, Position]]) -> None:
    """Refuse a budget file that lacks what others know was reserved in it.

    Args:
        kept: the position kept beside the file; it must be there.
        known: positions that run folders keep.
    """
    if kept is None or kept.budget not in lines.hashes[:1]:
        raise LedgerError(
            f"{beside(path)}, which tells whether {path} is its newest copy, is gone or that of another budget; "
            "put it back: it belongs to the budget wherever that is moved"
        )
    for where, position in [(beside(path), kept), *known]:
        position.need_reached(lines, path=path, known_by=where)


def need_reserved(run: Path) -> None:
    """Refuse a run whose reservation is no longer in its budget file.

    Edge cases: a run that shares no budget passes. So does one whose budget file is gone or out of reach: nobody can
    spend it here.
    """
    position = read_position(run / IN_RUN)
    if position is None:
        return
    path = Path(position.file)
    with suppress(OSError):
        if path.exists():
            position.need_reached(read_chain(path, torn=True), path=path, known_by=run)
