"""Several processes want one run folder, by `overwrite` or `resume`: does ever more than one have it?

    python tests/robustness/overwrite_driver.py FOLDER --races 20

Forks after torch was imported once. Prints one JSON object.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import dpsrm
from dpsrm.core.errors import InputError
from dpsrm.gradients import binary_loss
from dpsrm.runs import verify
from dpsrm.training import Performance, Privacy, Settings, Training

CHOSEN = Settings(
    privacy=Privacy(epsilon=50.0, delta=1e-5, noise_multiplier=2.0, accountant="rdp"),
    training=Training(batch=8, steps=6),
    performance=Performance(checkpoint_steps=2, threads=1),
)


def data():
    """A tiny problem."""
    torch.manual_seed(0)
    X = torch.randn(64, 5)
    return X, (X[:, 0] > 0).long()


def go(run, *, callbacks=(), overwrite=True):
    """Train into `run`."""
    return dpsrm.train(nn.Linear(5, 1), binary_loss, data(), CHOSEN, out=run, overwrite=overwrite, callbacks=callbacks)


def child(work):
    """Fork a child that does `work`; exit code 0: done, 3: refused because another trains there, 1: anything else."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except InputError as error:
        code = 3 if "another process trains" in str(error) else 1
        sys.stderr.write(f"{error}\n" if code == 1 else "")
    except BaseException as error:  # whatever it was, the parent must see it
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def code_of(process):
    """How a child ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def paused(run, *, at):
    """A child that trains into `run` and stops after step `at` until told; returns it, and how to tell it."""
    reached, arrive = os.pipe()
    wait, proceed = os.pipe()

    def watch(progress):
        if progress.step == at:
            os.write(arrive, b".")
            os.read(wait, 1)

    process = child(lambda: go(run, callbacks=[watch], overwrite=run.exists()))
    os.read(reached, 1)
    return process, lambda: os.write(proceed, b".")


def content(run):
    """Every file in the folder."""
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def resume(run):
    """Go on with `run`."""
    dpsrm.resume(run, nn.Linear(5, 1), binary_loss, data())


def held(folder):
    """While one process trains, others are refused and change nothing; it ends as if they had not been there."""
    run = folder / "held"
    process, proceed = paused(run, at=3)
    before = content(run)
    codes = [code_of(child(lambda: go(run))), code_of(child(lambda: resume(run)))]
    untouched = content(run) == before
    proceed()
    return {"refused": codes == [3, 3], "untouched": untouched, "finished": code_of(process) == 0 and verify(run).ok}


def killed(folder):
    """The lock ends with the process, and the folder can then be taken."""
    run = folder / "killed"
    process, _ = paused(run, at=3)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return {"after_kill": code_of(child(lambda: go(run))) == 0 and verify(run).ok}


def inner(folder):
    """A reference run inside `private/` holds the folder around it too."""
    run = folder / "outer"
    go(run)
    process, proceed = paused(run / "private" / "reference", at=3)
    code = code_of(child(lambda: go(run)))
    proceed()
    return {"inner": code == 3 and code_of(process) == 0 and verify(run).ok}


def race(folder, number):
    """Three processes overwrite one run at once; how many trained at the same time, and is the run a good one?"""
    run, busy = folder / f"race{number}", folder / f"busy{number}"
    go(run)
    gate, opener = os.pipe()

    def contend():
        def watch(progress):
            if progress.step == 1:
                os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
            if progress.step == CHOSEN.training.steps:
                busy.unlink()

        os.read(gate, 1)
        go(run, callbacks=[watch])

    contenders = [child(contend) for _ in range(3)]
    os.write(opener, b"go!")
    codes = [code_of(each) for each in contenders]
    return codes.count(0), codes.count(1), verify(run).ok


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--races", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    told = {**held(asked.folder), **killed(asked.folder), **inner(asked.folder)}
    results = [race(asked.folder, number) for number in range(asked.races)]
    told |= {"races": asked.races, "won": sum(won for won, _, _ in results)}
    told |= {"lost_all": sum(won == 0 for won, _, _ in results), "broken": sum(bad for _, bad, _ in results)}
    told["bad_runs"] = sum(not good for _, _, good in results)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
