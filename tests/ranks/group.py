"""Fork processes that form a gloo group on this machine, and collect what each says."""

import json
import os
import signal
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 300
"""The most that one group of processes may take."""


def fork(world, work, folder, *, timeout=SECONDS, kill=None):
    """What work(rank) returns on each rank, as JSON; {"error": …} if it raises, {"killed": signal} if it is killed.

    Args:
        kill: (rank, when) → that rank gets SIGKILL when `when()` is true.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.said"):
        old.unlink()
    store = folder / "store"
    store.unlink(missing_ok=True)
    pids = [_child(rank, world, work, folder) for rank in range(world)]
    codes, end = {}, time.monotonic() + timeout
    while len(codes) < world and time.monotonic() < end:
        for rank, pid in enumerate(pids):
            if rank not in codes and (done := os.waitpid(pid, os.WNOHANG))[0]:
                codes[rank] = done[1]
        if kill is not None and kill[1]():
            os.kill(pids[kill[0]], signal.SIGKILL)
            kill = None
        time.sleep(0.002)
    for rank in set(range(world)) - set(codes):
        os.kill(pids[rank], signal.SIGKILL)
        os.waitpid(pids[rank], 0)
    said = {rank: folder / f"{rank}.said" for rank in range(world)}
    ended = {rank: {"killed": codes.get(rank, "timeout")} for rank in range(world)}
    return [json.loads(path.read_text()) if path.exists() else ended[rank] for rank, path in said.items()]


def _child(rank, world, work, folder):
    """A process that joins the group, works, says what it found, and ends."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        where = f"file://{folder}/store"
        dist.init_process_group(
            "gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS)
        )
        try:
            said = work(rank)
        except BaseException as error:
            said = {"error": type(error).__name__, "words": str(error), "trace": traceback.format_exc()}
        (folder / f"{rank}.part").write_text(json.dumps(said))
        (folder / f"{rank}.part").rename(folder / f"{rank}.said")
    finally:
        os._exit(0)  # without the farewells of gloo and pytest
