"""Kill a training again and again, resume it each time, and compare the result with that of an uninterrupted run.

    python tests/robustness/kill_driver.py FOLDER --kills 25 --seed 0

A parent that imported torch once forks a child for every attempt; the child trains or resumes, and dies by SIGKILL at
a random moment or at a chosen passage through a write, fsync, rename, unlink or release (before it, in the middle of
it, or after it). Children note every release (its number and digest) in a file beside the run. Prints one JSON object.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import dpsrm
from dpsrm.gradients import binary_loss
from dpsrm.mechanisms import airlock
from dpsrm.runs import verify
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training

STEPS = 100
POINTS = ("write", "fsync", "replace", "unlink", "noise")


def settings(seed):
    """Adam (which has state), a tail average (which has state), several ledger blocks, frequent checkpoints."""
    return Settings(
        privacy=Privacy(epsilon=50.0, delta=1e-5, noise_multiplier=2.0),
        training=Training(batch=8, first_batch=16, steps=STEPS, learning_rate=0.05, optimizer="adam"),
        performance=Performance(checkpoint_steps=7, threads=1),
        seed=seed,
    )


def problem():
    """A tiny problem with dropout, whose masks must be resumed too."""
    torch.manual_seed(0)
    X = torch.randn(64, 5)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1))
    return module, (X, (X[:, 0] > 0).long())


class Trap:
    """Kills this process at the k-th passage through `point`: 0 before it, 1 in the middle of it, 2 after it."""

    def __init__(self, point, passage, when):
        self.point, self.left, self.when = point, passage, when

    def install(self, notes):
        real = {name: getattr(os, name) for name in ("write", "fsync", "replace", "unlink")}
        made = airlock.gaussian_noise

        def wrap(name):
            def call(*arguments, **options):
                return self.around(name, lambda *a: real[name](*a, **options), arguments)

            return call

        for name in real:
            setattr(os, name, wrap(name))

        def noise(*arguments):
            return self.around("noise", made, arguments)

        def released(door, total, sampling, s, event):
            value = inner(door, total, sampling, s, event)
            digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
            real["write"](notes, f"{door.releases - 1} {digest}\n".encode())
            return value

        inner = airlock.Airlock._released
        airlock.Airlock._released = released
        airlock.gaussian_noise = noise

    def around(self, name, real, arguments):
        hit = name == self.point and self.left == 0
        if name == self.point:
            self.left -= 1
        if hit and self.when == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if hit and self.when == 1 and name == "write":
            real(arguments[0], bytes(arguments[1])[: max(1, len(arguments[1]) // 2)])
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments)
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def attempt(run, notes_path, trap, chosen):
    """Fork; the child resumes the run (or begins it, if it had not begun). Returns the child's id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        notes = os.open(notes_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        trap.install(notes)
        module, data = problem()
        if (run / "private" / "checkpoint.safetensors").exists():
            resume(run, module, data)
        else:
            dpsrm.train(module, binary_loss, data, chosen, out=run, overwrite=run.exists())
        code = 0
    except BaseException as error:  # whatever it was, the parent must see it
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def resume(run, module, data):
    """Resume; a run killed while its key was being destroyed is finished and says so."""
    try:
        dpsrm.resume(run, module, binary_loss, data)
    except dpsrm.ResumeError as error:
        if "is finished" not in str(error):
            raise


def finished(run):
    """Whether nothing is left to resume."""
    left = (run / "private" / "keys.json", run / "private" / "checkpoint.safetensors")
    return (run / "certificate.md").exists() and not any(path.exists() for path in left)


def releases(notes_path):
    """What the children released: number → set of digests."""
    found = {}
    for line in notes_path.read_text().splitlines() if notes_path.exists() else []:
        number, digest = line.split()
        found.setdefault(int(number), set()).add(digest)
    return found


def charged(run):
    """How many releases the ledger on disk has charged."""
    path = run / "ledger.jsonl"
    return read_ledger(path, torn=True).spending.releases if path.exists() and path.read_bytes().count(b"\n") else 0


def torment(folder, *, kills, seed, chosen):
    """One training with up to `kills` kills; begun anew (another folder) until they were that many."""
    dice = random.Random(seed)
    count = {"kills": 0, "runs": 0, "begun_anew": 0, "hits": dict.fromkeys((*POINTS, "time"), 0), "problems": []}
    digests = set()
    while count["kills"] < kills:
        run = folder / f"run{count['runs']}"
        notes = folder / f"notes{count['runs']}"
        count["runs"] += 1
        while not finished(run):
            fresh = count["kills"] < kills
            point = dice.choice((*POINTS, "time")) if fresh else "none"
            passage = dice.randrange(40 if point == "noise" else 3 if point == "unlink" else 12)
            trap = Trap(point, passage, dice.randrange(3))
            child = attempt(run, notes, trap, chosen)
            if point == "time":
                time.sleep(dice.uniform(0, 0.3))
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if os.WIFSIGNALED(status):
                count["kills"] += 1
                count["hits"][point] += 1
                count["begun_anew"] += not (run / "private" / "checkpoint.safetensors").exists()
            elif os.WEXITSTATUS(status):
                count["problems"].append(f"an attempt failed ({point})")
                return count, digests
            made = releases(notes)
            if len(made) > charged(run):
                count["problems"].append(f"{len(made)} releases, {charged(run)} charged")
            if any(len(each) > 1 for each in made.values()):
                count["problems"].append("a release was made again with another value")
        if not verify(run).ok:
            count["problems"] += verify(run).problems
        digests.add(digest_of(run))
        shutil.rmtree(run)
    return count, digests


def digest_of(run):
    """Model, ledger and certificate: all of what is published."""
    names = ("model.safetensors", "ledger.jsonl", "certificate.md", "report.html", "statement.json", "model_card.md")
    return hashlib.sha256(b"".join((run / name).read_bytes() for name in names)).hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chosen = settings(7)
    plain = asked.folder / "uninterrupted"
    module, data = problem()
    dpsrm.train(module, binary_loss, data, chosen, out=plain)
    count, digests = torment(asked.folder, kills=asked.kills, seed=asked.seed, chosen=chosen)
    count["same"] = digests == {digest_of(plain)}
    sys.stdout.write(json.dumps(count) + "\n")


if __name__ == "__main__":
    main()
