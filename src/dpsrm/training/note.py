"""The journal of a training in `private/`: exact facts, about 200 lines of them, for the operator's report."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import RawIOBase
from typing import Any

from dpsrm.core.errors import InputError
from dpsrm.training.step import Progress


def note(progress: Progress, journal: RawIOBase) -> None:
    """Keep about 200 lines of exact training facts in `private/`; a resumed run adds to them (some steps twice)."""
    every = max(1, progress.steps // 200)
    if progress.step % every and progress.step != progress.steps:
        return
    facts: dict[str, Any] = {name: getattr(progress, name) for name in ("step", "steps", "direction_norm", "charged")}
    heard = {} if progress.heard is None else progress.heard.journal()
    line = json.dumps({**facts, **heard, "private": asdict(progress.private)}) + "\n"
    try:
        journal.write(line.encode())
    except OSError as error:
        raise InputError(
            f"cannot write the run's journal in private/: {error}; free some space, then resume"
        ) from error
