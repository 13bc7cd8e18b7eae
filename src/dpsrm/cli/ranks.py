"""The command line under torchrun: join the other ranks, let one speak, and go on after a restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dpsrm.cli.show import err, out
from dpsrm.core.files import read_toml
from dpsrm.runs.folder import RunFolder

if TYPE_CHECKING:
    from dpsrm.training import Settings

_PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another that is alive but says nothing; a dead one is noticed at once."""


@contextmanager
def joined() -> Iterator[None]:
    """Be one of the ranks that torchrun started, if it did; all but rank 0 are silent."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield
        return
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] != "0":
        out.quiet = err.quiet = True
        logging.getLogger("dpsrm").setLevel(logging.ERROR)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def how_to_start(folder: Path, settings: Settings) -> str:
    """Whether the run in `folder` is new, to be resumed, to be begun again or finished; the same on all ranks.

    A run is only ever gone on with here if torchrun restarted a rank: otherwise a folder that exists is refused.
    """
    from dpsrm.training.ranks import strategy

    ranks = strategy()
    again = ranks.any(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)
    return ranks.tell((_state_of(RunFolder(folder), settings) if again else "new").encode()).decode()


def _state_of(folder: RunFolder, settings: Settings) -> str:
    """What to do after a restart: "new" (there is no run, or none of ours), "resume", "finished", or "again".

    "again" is for a run that was stopped before its first checkpoint: only if nothing was charged yet.
    """
    from dpsrm.training.config import settings_from, settings_to_dict
    from dpsrm.training.start import is_closed

    if not folder.path.exists():
        return "new"
    if not folder.checkpoint.exists() and not is_closed(folder):
        return "new" if folder.ledger.exists() else "again"
    written = settings_to_dict(settings_from(read_toml(folder.config)))
    if written != settings_to_dict(settings):
        return "new"
    return "finished" if is_closed(folder) else "resume"


def default_out(name: str) -> Path:
    """A run folder that does not exist yet, named after the data and the time; under torchrun, when that started.

    A rank that is restarted finds the folder of its run by that name.
    """
    when = datetime.now()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        when = _started(os.getppid()) or when
    return Path("runs") / f"{name}-{when:%Y%m%d-%H%M%S}"


def _started(process: int) -> datetime | None:
    """When a process of this machine started, where Linux says so."""
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return datetime.fromtimestamp(int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
