"""Records, panics and mistakes that stop one rank of two, for test_stops.py: what each rank saw, as JSON."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from dpsrm.gradients import multiclass_loss
from dpsrm.runs import verify
from dpsrm.training import Performance, ahead, make_private, train
from ranks.group import fork
from ranks.scenarios import network, records, settings

MADE = 3
"""Steps before the one that fails."""


class Panic(BaseException):
    """As compiled libraries raise it: no Exception."""


class Unsteady(Dataset):
    """Records that can be read until `error` is set."""

    error = None

    def __init__(self):
        self._rows = list(zip(*records(), strict=True))

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, i):
        if self.error is not None:
            raise self.error
        return self._rows[i]


def start(out, data, **more):
    """A run of one's own loop."""
    model = network()
    chosen = {"batch_size": 20, "steps": 12, "epsilon": 50.0, "delta": 1e-4, "noise_multiplier": 1.0, "method": "sgd"}
    return make_private(
        model=model,
        losses=nn.CrossEntropyLoss(reduction="none"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=data,
        accountant="rdp",
        performance=Performance(checkpoint_steps=1, threads=1),
        out=out,
        **chosen,
        **more,
    )


def said(error):
    return {"error": type(error).__name__, "words": str(error)}


def marks(out):
    return [line for line in (out / "private/sums.log").read_text().split("\n") if line.startswith(("failed", "made"))]


def looped(out, at, spoil, *, stay=0.0):
    """A loop that rank `at` spoils after some steps: what stopped each rank; that one's process may live on."""

    def work(rank):
        data = Unsteady()
        private, made = start(out, data), 0
        try:
            for batch in private.data_loader:
                if made == MADE and rank == at:
                    spoil(data, batch)
                private.step(batch)
                made += 1
                if made == MADE and rank == at and spoil.__name__ == "unreadable":
                    spoil(data, batch)
        except BaseException as error:
            time.sleep(stay if rank == at else 0.0)
            return {**said(error), "made": made}

    return work


def gone_on(out):
    """The same in other processes: `finish` before the step that failed, and after it."""

    def work(rank):
        private, found = start(out, Unsteady(), resume=True), {}
        try:
            private.finish()
        except Exception as error:
            found = said(error)
        for batch in private.data_loader:
            if private.steps_made > MADE:
                break
            private.step(batch)
        private.finish()
        return {**found, "made": private.steps_made}

    return work


def unreadable(data, batch):
    data.error = ValueError("record 17 cannot be read")


def gone(data, batch):
    os._exit(0)


def changed(data, batch):
    batch[0].add_(1)


def own_stops(folder):
    """One rank of one's own loop cannot read a record, dies between a batch and its step, or changes a batch."""
    found = {}
    for name, at, spoil in (("first", 0, unreadable), ("second", 1, unreadable), ("gone", 1, gone)):
        out = folder / name
        ranks = fork(2, looped(out, at, spoil, stay=1.0), folder / f"g-{name}")
        noted = marks(out)
        again = fork(2, gone_on(out), folder / f"h-{name}")
        found[name] = {"ranks": ranks, "marks": noted, "again": again, "ok": verify(out).ok}
    found["changed"] = fork(2, looped(folder / "changed", 1, changed), folder / "g-changed")
    return found


def disk_stops(folder):
    """`train` over records on disk: one rank cannot read one ahead; and one rank has the same records in memory."""
    inputs, targets = records()
    np.save(folder / "x.npy", inputs.numpy())

    def data(on_disk=True):
        return (np.load(folder / "x.npy", mmap_mode="r") if on_disk else inputs.numpy()), targets.numpy()

    def unread(rank, at):
        reads, real = [], ahead.read

        def read(*what):
            reads.append(what)
            if rank == at and len(reads) > MADE:
                raise Panic("record 17 cannot be read")
            return real(*what)

        ahead.read = read
        try:
            train(network(), multiclass_loss, data(), settings("sgd", "wor", batch=20), out=folder / f"run{at}")
        except BaseException as error:
            time.sleep(1.0 if rank == at else 0.0)
            return said(error)

    def mixed(rank):
        chosen = settings("sgd", "wor", batch=20)
        return {"head": train(network(), multiclass_loss, data(rank == 0), chosen, out=folder / "mixed").head}

    found = {str(at): fork(2, lambda rank, at=at: unread(rank, at), folder / f"g{at}") for at in (0, 1)}
    noted = {str(at): marks(folder / f"run{at}") for at in (0, 1)}
    return {"ranks": found, "marks": noted, "mixed": fork(2, mixed, folder / "m")}


def panics(folder):
    """The loss of one rank panics, exits or interrupts over a record."""

    def work(rank, at, kind, words):
        calls = []

        def losses(model, batch):
            calls.append(rank)
            if rank == at and len(calls) > 12:
                raise kind(*words)
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

        out = folder / f"{kind.__name__}{at}"
        try:
            train(network(), losses, records(), settings("sgd", "wor", steps=40), out=out)
        except BaseException as error:
            return said(error)

    found = {}
    for kind, *words in ((Panic, "unwrap on a None value"), (SystemExit, "bad token"), (KeyboardInterrupt,)):
        for at in (0, 1):
            name = f"{kind.__name__}{at}"
            task = lambda rank, at=at, kind=kind, words=words: work(rank, at, kind, words)  # noqa: E731
            found[name] = {"ranks": fork(2, task, folder / f"g-{name}"), "marks": marks(folder / name)}
    return found


SCENARIOS = {each.__name__: each for each in (own_stops, disk_stops, panics)}
