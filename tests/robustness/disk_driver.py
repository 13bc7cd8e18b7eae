"""Train on a disk that fills up: after which byte does what fail, and is anything released that was not charged?

    python tests/robustness/disk_driver.py FOLDER

The disk is a file-size limit (RLIMIT_FSIZE) on forked children, a few bytes further each time, so that every write of
the ledger is cut off somewhere. Prints one JSON object.
"""

import argparse
import json
import os
import resource
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import DpsrmError
from dpsrm.gradients import binary_loss
from dpsrm.mechanisms import airlock
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training


def go(run):
    """A short training whose ledger grows with every step."""
    torch.manual_seed(0)
    X = torch.randn(64, 3)
    chosen = Settings(
        privacy=Privacy(epsilon=50.0, delta=1e-5, noise_multiplier=2.0, accountant="rdp", sampling="wor"),
        training=Training(batch=8, steps=40),
        performance=Performance(checkpoint_seconds=0, checkpoint_steps=0),
        seed=1,
    )
    dpsrm.train(nn.Linear(3, 1), binary_loss, (X, (X[:, 0] > 0).long()), chosen, out=run)


def child(run, limit, notes_path):
    """Train with files of at most `limit` bytes; exit code 0: done, 3: the project's own error, 1: another."""
    code = 1
    try:
        notes = os.open(notes_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        inner = airlock.Airlock._released

        def released(door, *arguments):
            value = inner(door, *arguments)
            os.write(notes, b".")
            return value

        airlock.Airlock._released = released
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        go(run)
        code = 0
    except DpsrmError as error:
        code = 3 if "File too large" in str(error) or "bytes were taken" in str(error) else 1
        sys.stderr.write(f"{error}\n")
    except BaseException as error:  # whatever it was, the parent must see it
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    airlock._BLOCK = 1  # a ledger line for every release, so that the ledger is what fills the disk
    told = {"full": 0, "uncharged": 0, "other": [], "released": [], "charged": []}
    go(asked.folder / "warm")
    for k, limit in enumerate(range(1900, 5000, 487)):
        run, notes = asked.folder / f"run{k}", asked.folder / f"notes{k}"
        process = os.fork()
        if process == 0:
            child(run, limit, notes)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        released = len(notes.read_bytes())
        ledger = run / "ledger.jsonl"
        charged = read_ledger(ledger, torn=True).spending.releases if ledger.exists() else 0
        told["full"] += code == 3
        told["uncharged"] += max(0, released - charged)
        told["other"] += [] if code == 3 else [[limit, code]]
        told["released"].append(released)
        told["charged"].append(charged)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    airlock._BLOCK = 1  # a ledger line for every release, so that the ledger is what fills the disk
    main()
