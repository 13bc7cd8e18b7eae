"""Trainings on one and on two ranks, for tests/ranks/test_ranks.py: each scenario returns what was seen, as JSON."""

import hashlib
import os
import signal
import time
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import nn

from dpsrm.core.secret import LARGE
from dpsrm.gradients import binary_loss, multiclass_loss
from dpsrm.methods import Agd, Disk, Sgd, Srm
from dpsrm.runs import verify
from dpsrm.runs.ledger import Ledger, read_ledger
from dpsrm.training import Performance, Privacy, Settings, Training, make_private, resume, step, train
from ranks.group import fork

METHODS = {"srm": Srm(max_diff_norm=0.3), "sgd": Sgd(momentum=0.5), "disk": Disk()}
N = 200


def records(n=N, features=6):
    stream = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, features, generator=stream)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


LONG = int(os.environ.get("DPSRM_RANK_STEPS", "15"))
"""Steps of the trainings that are compared; 50 in `make soak`."""


def settings(method="srm", scheme="poisson", *, steps=LONG, batch=5, every=7, **changes):
    made = {
        "privacy": Privacy(epsilon=50.0, delta=1e-4, noise_multiplier=1.0, sampling=scheme, accountant="rdp"),
        "method": METHODS[method],
        "training": Training(batch=batch, steps=steps, learning_rate=0.3),
        "performance": Performance(checkpoint_steps=every, checkpoint_seconds=0, threads=1),
        "seed": 7,
    }
    return Settings(**{**made, **changes})


def here(parameter):
    """The numbers of a parameter, or of its shard that lies on this rank."""
    return (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()


def digest(module):
    return hashlib.sha256(b"".join(here(p).numpy().tobytes() for p in module.parameters())).hexdigest()


def flat(module):
    """All parameters, or of many some from everywhere."""
    theta = torch.cat([here(p).flatten() for p in module.parameters()])
    return theta[:: 1 + len(theta) // 300].tolist()


def charges(run):
    return (Path(run) / "ledger.jsonl").read_text().splitlines()[:-1]


def spy_on_draws():
    """A hash of all draws that the step makes from now on."""
    seen, real = hashlib.sha256(), step.draw

    def spy(sampling, stream):
        found = real(sampling, stream)
        seen.update(np.ascontiguousarray(found).tobytes())
        return found

    step.draw = spy
    return seen


def trained(out, chosen, *, module=None, data=None, callbacks=(), loss=multiclass_loss):
    """One training in this process: what came out."""
    module = module if module is not None else network()
    seen, told = spy_on_draws(), Told()
    run = train(module, loss, data or records(), chosen, out=out, callbacks=[*callbacks, told])
    found = {"digest": digest(module), "theta": flat(module), "draws": seen.hexdigest(), "head": run.head}
    return {**found, "epsilon": run.epsilon, "told": told.digests}


class Told:
    """Keeps a hash of what every step heard: all bits of it, more than a float32 θ shows."""

    def __init__(self):
        self.digests = {}

    def __call__(self, progress):
        if progress.heard is not None:
            self.digests[str(progress.step)] = hashlib.sha256(progress.heard.value.numpy().tobytes()).hexdigest()[:16]


def equality(folder):
    """One process and two ranks for every method and sampling; of the first method (in `make soak`: of all) twice."""
    found = {}
    for name in METHODS:
        times = range(2 if name == "srm" or LONG >= 50 else 1)
        for scheme in ("wor", "poisson"):
            at, chosen = folder / f"{name}-{scheme}", settings(name, scheme)
            alone = fork_alone(lambda at=at, chosen=chosen: trained(at / "one", chosen), at / "a")
            pairs = [
                fork(2, lambda rank, k=k, at=at, chosen=chosen: pair(rank, at, k, chosen), at / f"b{k}") for k in times
            ]
            runs = ["one", *(f"two{k}" for k in times)]
            ledgers = [charges(at / run) for run in runs]
            found[f"{name} {scheme}"] = {
                "alone": alone,
                "pairs": pairs,
                "ledgers": len({tuple(lines) for lines in ledgers}),
                "verified": all(verify(at / run).ok for run in runs),
            }
    return found


def pair(rank, at, k, chosen):
    """One rank of a training; its module begins elsewhere than rank 0's, and only rank 0 is told where to write."""
    out = at / f"two{k}" if rank == 0 else at / "nowhere"
    found = trained(out, chosen, module=network(seed=rank))
    return {**found, "elsewhere": (at / "nowhere").exists()}


def fork_alone(work, folder):
    """As `fork`, without a group."""
    pid = os.fork()
    if pid == 0:
        import json

        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "alone.said").write_text(json.dumps(work()))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    import json

    return json.loads((folder / "alone.said").read_text())


class Heard:
    """Keeps what was released."""

    def __init__(self):
        self.values = []

    def __call__(self, progress):
        self.values.append(progress.heard.value.clone() * 20)


def silent(features, n=100):
    """Records whose gradients are zero: what is released is noise."""
    return torch.zeros(n, features), torch.zeros(n, dtype=torch.long)


def noise(folder):
    """What two ranks release of records without gradients: noise alone, of a small and of a large model.

    If they share their memory ("sharded"), each hears only what it released itself.
    """
    found = {}
    for name, features, classes, steps in (("small", 30, 20, 40), ("large", 700, 100, 2), ("sharded", 700, 100, 2)):
        chosen = settings(
            "sgd", "wor", steps=steps, batch=20, performance=Performance(threads=1, sharded=name == "sharded")
        )

        def work(rank, name=name, features=features, classes=classes, chosen=chosen):
            heard, module = Heard(), nn.Linear(features, classes, bias=False)
            trained(folder / f"{name}{rank}", chosen, module=module, data=silent(features), callbacks=[heard])
            values = torch.stack(heard.values)
            np.save(folder / f"{name}{rank}.npy", values.numpy())
            return {"size": values.numel()}

        found[name] = {"said": fork(2, work, folder / f"g{name}"), "files": [f"{name}{r}.npy" for r in (0, 1)]}
    return found


def large(folder):
    """A model whose noise is made by both ranks, and by one process, is the same model."""
    chosen = settings("srm", "wor", steps=3, batch=20)

    def one(out):
        torch.manual_seed(0)
        return trained(out, chosen, module=nn.Linear(700, 100), data=records(100, 700))

    alone = fork_alone(lambda: one(folder / "one"), folder / "a")
    return {"alone": alone, "pair": fork(2, lambda rank: one(folder / f"two{rank}"), folder / "b")}


def resumed(folder):
    """A rank is killed in the middle; two, one and three ranks each go on from there, and one that was never killed."""
    chosen = settings("srm", "poisson", steps=30, batch=12)
    whole = fork(2, lambda rank: trained(folder / f"whole{rank}", chosen), folder / "g0")
    found = {"whole": whole}
    for ranks in (2, 1, 3):
        out = folder / f"cut{ranks}"

        def cut(rank, out=out):
            def stop(progress):
                if rank == 1 and progress.step == 17:
                    os.kill(os.getpid(), signal.SIGKILL)

            return trained(out if rank == 0 else folder / "no", chosen, callbacks=[stop])

        def go_on(rank, out=out):
            module, told = network(seed=5), Told()
            run = resume(out if rank == 0 else folder / "no", module, multiclass_loss, records(), callbacks=[told])
            return {"digest": digest(module), "head": run.head, "told": told.digests}

        first = fork(2, cut, folder / f"g{ranks}")
        charged = read_ledger(out / "ledger.jsonl", torn=True).spending.releases
        again = fork(ranks, go_on, folder / f"h{ranks}") if ranks > 1 else [fork_alone(lambda: go_on(0), folder / "h1")]
        found[str(ranks)] = {"first": first, "charged": charged, "again": again, "ok": verify(out).ok}
        found[str(ranks)]["ledger"] = charges(out) == charges(folder / "whole0")
    return found


def refusals(folder):
    """What is not the same on all ranks is refused on all, before anything is written."""

    def other_data(rank):
        inputs, targets = records()
        inputs[5, 0] += rank
        return trained(folder / f"data{rank}", settings(), data=(inputs, targets))

    def other_settings(rank):
        return trained(folder / f"settings{rank}", settings(batch=5 + rank))

    def other_module(rank):
        width = 5 + rank
        module = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
        return trained(folder / f"module{rank}", settings(), module=module)

    def other_loss(rank):
        loss = multiclass_loss if rank == 0 else nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
        return trained(folder / f"loss{rank}", settings(), loss=loss)

    def no_folder(rank):
        (folder / "there").mkdir(exist_ok=True)
        return trained(folder / "there", settings())

    cases = {
        "data": other_data,
        "settings": other_settings,
        "module": other_module,
        "loss": other_loss,
        "folder": no_folder,
    }
    found = {name: fork(2, work, folder / f"g-{name}", timeout=60) for name, work in cases.items()}
    found["written"] = [path.name for path in folder.iterdir() if path.name[:4] in ("data", "sett", "modu", "loss")]
    return found


def failures(folder):
    """An error on one rank only stops both, with its words, and what was begun can be gone on with."""

    def one_fails(rank):
        def losses(model, batch):
            if rank == 1 and losses.calls > 12:
                raise RuntimeError("the disk of rank 1 is full")
            losses.calls += 1
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

        losses.calls = 0
        return trained(folder / "fails" if rank == 0 else folder / "no", settings(steps=40), loss=losses)

    def one_stops(rank):
        def stop(progress):
            if rank == 1 and progress.step == 9:
                progress.stop()

        return trained(folder / "stops" if rank == 0 else folder / "no", settings(steps=40), callbacks=[stop])

    def moved(rank):
        def push(progress):
            if rank == 1 and progress.step == 9:
                chosen.walk.theta += 1e-3

        from dpsrm.training import prepare as module

        chosen, real = None, module.Prepared.__init__

        def spy(self, **values):
            nonlocal chosen
            real(self, **values)
            chosen = self

        module.Prepared.__init__ = spy
        return trained(folder / "moved" if rank == 0 else folder / "no", settings(steps=40), callbacks=[push])

    found = {name.__name__: fork(2, name, folder / f"g-{name.__name__}") for name in (one_fails, one_stops, moved)}
    found["charged"] = read_ledger(folder / "fails" / "ledger.jsonl").spending.releases
    return found


def waiting(folder):
    """On the other rank, no noise is made before the charge for it is on disk, however slow the disk is."""
    from dpsrm.mechanisms import airlock

    out = folder / "run"

    def work(rank):
        seen, real_noise, real_charge = [], airlock.gaussian_noise, Ledger.charge

        def late(self, event, count):
            time.sleep(0.5)
            real_charge(self, event, count)

        def noise_made(*arguments):
            seen.append(read_ledger(out / "ledger.jsonl").spending.releases)
            return real_noise(*arguments)

        Ledger.charge, airlock.gaussian_noise = late, noise_made
        module = nn.Linear(700, 100, bias=False)
        trained(out, settings("sgd", "wor", steps=2, batch=20), module=module, data=silent(700))
        return seen

    def full(rank):
        def fail(self, event, count):
            raise OSError("no space left on device")

        Ledger.charge = fail
        return trained(folder / "full", settings("sgd", steps=2))

    return {"seen": fork(2, work, folder / "g"), "full": fork(2, full, folder / "h")}


def own_loop(folder):
    """`make_private` inside a group: each rank gets its share, and the model is that of `train`."""
    sizes = []

    def work(rank):
        model = network(seed=rank)
        private = make_private(
            model=model,
            losses=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
            data=records(),
            batch_size=4,
            steps=16,
            epsilon=50.0,
            delta=1e-4,
            noise_multiplier=1.0,
            accountant="rdp",
            method=METHODS["srm"],
            seed=7,
            out=folder / f"own{rank}",
        )
        for batch in private.data_loader:
            sizes.append(len(batch[0]))
            private.step(batch)
        state = hashlib.sha256(private.state_dict()["dpsrm"].numpy().tobytes()).hexdigest()
        run = private.finish()
        return {"digest": digest(model), "sizes": sizes, "head": run.head, "epsilon": run.epsilon, "state": state}

    def same(rank):
        chosen = settings("srm", steps=16, batch=4)
        sgd = Training(batch=4, steps=16, learning_rate=0.3, optimizer="sgd", output="last")
        return trained(folder / f"train{rank}", Settings(**{**vars(chosen), "training": sgd}))

    return {"own": fork(2, work, folder / "g"), "train": fork(2, same, folder / "h"), "ok": verify(folder / "own0").ok}


def kinds(folder):
    """Units, a method that chooses, an estimator, no privacy, and three ranks of a batch of two."""
    import dpsrm.sklearn
    from dpsrm.methods import Gd

    ids = np.arange(N) // 2
    promise = Privacy(epsilon=50.0, delta=1e-4, noise_multiplier=1.0, accountant="rdp", unit="person", rows_per_unit=3)
    adaptive = settings(
        privacy=Privacy(epsilon=20.0, delta=1e-5, accountant="rdp"),
        training=Training(steps=8),
    )
    adaptive = Settings(**{**vars(adaptive), "method": Agd()})
    full = Settings(**{**vars(settings()), "method": Gd(), "training": Training(steps=10, learning_rate=0.3)})
    y = (records()[0][:, 0] > 0).long()

    def units(rank):
        module = network(seed=rank)
        run = train(
            module, multiclass_loss, records(), settings(privacy=promise), out=folder / f"units{place(rank)}", unit=ids
        )
        return {"theta": flat(module), "head": run.head}

    def place(rank):
        return f"{os.environ.get('WORLD', 0)}-{rank}"

    def agd(rank):
        torch.manual_seed(0)
        return trained(
            folder / f"agd{place(rank)}", adaptive, module=nn.Linear(6, 1), data=(records()[0], y), loss=binary_loss
        )

    def gd(rank):
        return trained(folder / f"gd{place(rank)}", full)

    def plain(rank):
        return trained(folder / f"plain{place(rank)}", settings(privacy=None))

    def fitted(rank):
        model = dpsrm.sklearn.PrivateLogisticRegression(epsilon=20.0, delta=1e-4, steps=20, random_state=3)
        model.fit(records()[0].clip(-1, 1).numpy(), y.numpy())
        return {"theta": np.ravel(model.coef_).tolist()}

    def tiny(rank):
        return trained(folder / f"tiny{place(rank)}", settings("sgd", batch=2, steps=20))

    found = {}
    for work in (units, agd, gd, plain, fitted, tiny):
        os.environ["WORLD"] = "1"
        alone = fork_alone(lambda work=work: work(0), folder / f"a-{work.__name__}")
        world = 3 if work is tiny else 2
        os.environ["WORLD"] = str(world)
        found[work.__name__] = {"alone": alone, "group": fork(world, work, folder / f"g-{work.__name__}")}
    return found


def wide():
    """A model whose coordinates lie on two ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(300, 230)


AGAIN = ("srm wor", "sgd poisson", "disk wor", "adam")
"""Trainings with shared memory that are made twice."""


def sharded(folder):
    """Every method and sampling with memory shared by two ranks; then cut off and gone on with by one and by three."""
    found, data = {}, records(N, 300)
    adam = Training(batch=8, steps=LONG, learning_rate=0.02, optimizer="adam", decay="cosine", output="ema")
    variants = {
        **{f"{name} {scheme}": settings(name, scheme) for name in METHODS for scheme in ("wor", "poisson")},
        "adam": settings("srm", training=adam),
        "dp-adam": settings("sgd", training=Training(batch=8, steps=20, learning_rate=0.02, optimizer="dp-adam")),
    }
    for name, chosen in variants.items():
        at = folder / name.replace(" ", "-")
        parts = Settings(**{**vars(chosen), "performance": Performance(checkpoint_steps=7, threads=1, sharded=True)})
        alone = fork_alone(lambda at=at, c=chosen: trained(at / "one", c, module=wide(), data=data), at / "a")
        pairs = [
            fork(2, lambda r, at=at, k=k, c=parts: trained(at / f"{k}-{r}", c, module=wide(), data=data), at / f"b{k}")
            for k in range(2 if name in AGAIN else 1)
        ]
        found[name] = {"alone": alone, "pairs": pairs, "verified": verify(at / "0-0").ok}

    def cut(rank, out):
        def stop(progress):
            if rank == 1 and progress.step == LONG - 4:
                os.kill(os.getpid(), signal.SIGKILL)

        chosen = Performance(checkpoint_steps=7, threads=1, sharded=True)
        here = settings("srm", training=adam, performance=chosen)
        return trained(out, here, module=wide(), data=data, callbacks=[stop])

    def go_on(out):
        module = wide()
        run = resume(out, module, multiclass_loss, data)
        return {"digest": digest(module), "head": run.head}

    again = {}
    for ranks in (1, 3):
        out = folder / f"cut{ranks}"
        fork(2, lambda rank, out=out: cut(rank, out), folder / f"g{ranks}")
        again[ranks] = (
            fork(ranks, lambda _, out=out: go_on(out), folder / f"h{ranks}")
            if ranks > 1
            else [fork_alone(lambda out=out: go_on(out), folder / "h1")]
        )
    sizes = fork(2, _remembered, folder / "sizes")

    def lengths(rank):
        chosen = settings(performance=Performance(sharded=True), method="srm")
        return trained(
            folder / "no", Settings(**{**vars(chosen), "method": Srm(relative=1.0)}), module=wide(), data=data
        )

    return {"runs": found, "again": again, "sizes": sizes, "refused": fork(2, lengths, folder / "refused")}


def _remembered(rank):
    """How many numbers a rank remembers of an Adam run, by what they are."""
    from dpsrm.core.secret import Streams
    from dpsrm.training.prepare import prepare

    training = Training(batch=8, steps=5, optimizer="adam", output="ema")
    chosen = settings("srm", training=training, performance=Performance(sharded=True, threads=1))
    walk = prepare(wide(), multiclass_loss, records(N, 300), chosen, Streams.seeded(1)).walk
    return {"direction": len(walk.direction), "theta": len(walk.inner.theta), "whole": len(walk.theta)}


KILLS = int(os.environ.get("DPSRM_RANK_KILLS", "2"))
STEPS = 40 * KILLS


def killed(folder):
    """Random ranks are killed at random times, on two or three ranks in turn, until the run is through.

    A rank that was not killed in time kills itself some releases on: so there are always as many kills as asked for.
    Both ranks make noise. Every part that leaves an airlock is written down at once, before anything else happens.
    """
    from dpsrm.mechanisms import airlock

    chosen, out, random = settings("srm", "poisson", steps=STEPS, batch=12, every=5), folder / "run", Random(5)
    data, loss = records(100, 700), multiclass_loss
    problems, kills, attempts, last = [], 0, 0, None
    seen: dict[str, str] = {}

    def work(rank, world, doomed):
        torch.manual_seed(0)
        module, inner = nn.Linear(700, 100), airlock.Airlock._released
        notes = os.open(folder / f"notes{world}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def released(door, total, sampling, s, event):
            value = inner(door, total, sampling, s, event)
            blocks = {b: hashlib.sha256(v.numpy().tobytes()).hexdigest() for b, v in _blocks(total, value)}
            lines = [f"{door.releases - 1}/{block} {digest}\n" for block, digest in blocks.items()]
            os.write(notes, "".join(lines).encode())
            if (rank, door.releases) == doomed:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        airlock.Airlock._released = released
        run = resume(out, module, loss, data) if out.exists() else train(module, loss, data, chosen, out=out)
        return {"digest": digest(module), "head": run.head}

    while attempts < 4 * KILLS + 8:
        attempts += 1
        world = random.choice([2, 3])
        until = time.monotonic() + random.uniform(0.3, 2.5)
        ready = lambda until=until: (out / "private" / "checkpoint.safetensors").exists() and time.monotonic() > until  # noqa: E731
        farthest = max((int(place.split("/")[0]) for place in seen), default=0)
        victim, late = (random.randrange(world), farthest + random.randint(10, 30)) if kills < KILLS else (None, None)
        kill = None if victim is None else (victim, ready)
        task = lambda rank, world=world, doomed=(victim, late): work(rank, world, doomed)  # noqa: E731
        last = fork(world, task, folder / "g", kill=kill)
        kills += any("killed" in rank for rank in last)
        charged = read_ledger(out / "ledger.jsonl", torn=True).spending.releases
        for path in folder.glob("notes*"):
            for line in path.read_text().splitlines():
                place, found = line.split()
                if seen.setdefault(place, found) != found:
                    problems.append(f"release {place} was made twice, differently")
                if int(place.split("/")[0]) >= charged:
                    problems.append(f"release {place} was made, {charged} were charged")
        if all("digest" in rank for rank in last):
            break
    told = {
        "kills": kills,
        "attempts": attempts,
        "problems": problems,
        "releases": len(seen),
        "steps": STEPS,
        "last": last,
    }
    return {**told, "ok": verify(out).ok}


def _blocks(total, value):
    """The blocks of noise that a released part consists of, by number."""
    part = total.coordinates(len(value))
    for begin in range(part.begin, part.end, LARGE):
        yield begin // LARGE, value[begin - part.begin : begin - part.begin + LARGE]


SCENARIOS = {
    each.__name__: each
    for each in (equality, noise, large, resumed, refusals, failures, waiting, own_loop, kinds, sharded, killed)
}
