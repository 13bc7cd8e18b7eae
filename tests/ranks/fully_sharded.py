"""Trainings of modules that torch's `fully_shard` has sharded, for tests/ranks/test_fully_shard.py."""

import gc
import os
import shutil
import signal
import weakref

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from dpsrm.core.events import Adjacency
from dpsrm.gradients import multiclass_loss
from dpsrm.methods import Srm
from dpsrm.runs import verify
from dpsrm.training import Performance, Privacy, Settings, make_private, resume, train
from dpsrm.training.lending import Lending
from ranks.group import fork
from ranks.scenarios import LONG, charges, fork_alone, records, settings, trained

WIDTH = 16
STEPS = LONG if LONG >= 50 else 8
"""As in scenarios.py, but fewer."""


class Adapted(nn.Module):
    """A frozen layer with a trained branch beside it: LoRA."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    """Attention and a small network, frozen but for the branches."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.q, self.v = Adapted(), Adapted()
        self.k, self.out, self.last = (nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (each(y).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + torch.tanh(self.last(x))


class Model(nn.Module):
    """Six numbers as three tokens, some layers, and a trained head."""

    def __init__(self, layers=3):
        super().__init__()
        self.first = nn.Linear(2, WIDTH).requires_grad_(False)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.first(x.unflatten(-1, (3, 2)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def whole(layers=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(layers)


def sharded(layers=3, *, trained_too=True, **options):
    """The same model, layer by layer in shards; `trained_too`: also what is trained."""
    from torch.distributed.fsdp import fully_shard

    model = whole(layers)
    kept = set() if trained_too else {p for p in model.parameters() if p.requires_grad}
    for each in (*model.layers, model):
        fully_shard(each, ignored_params=kept, **options)
    return model


def changed(chosen, **what):
    return Settings(**{**vars(chosen), **what})


def published(run):
    return {name: value.flatten().tolist() for name, value in load_file(run / "model.safetensors").items()}


def fsdp_equality(folder):
    """LoRA on a sharded base, in several ways, is LoRA on a whole one in one process."""
    fixed = {"epsilon": 50.0, "delta": 1e-4, "noise_multiplier": 1.0, "accountant": "rdp"}
    shifting = Privacy(**fixed, adjacency=Adjacency.ADD_REMOVE)
    own = Performance(checkpoint_steps=7, threads=1, sharded=True)
    cases = {
        "srm poisson": (2, settings("srm", "poisson", steps=STEPS), {}),
        "sgd wor, trained whole": (2, settings("sgd", "wor", steps=STEPS), {"trained_too": False}),
        "disk poisson, memory shared": (2, settings("disk", "poisson", performance=own, steps=STEPS), {}),
        "places shift": (2, settings("srm", "poisson", privacy=shifting, steps=3), {}),
        "checked": (2, settings("srm", "poisson", privacy=Privacy(**{**fixed, "isolation": "checked"}), steps=3), {}),
        "loop": (2, settings("srm", "poisson", steps=2, performance=Performance(engine="loop", threads=1)), {}),
        "empty shares": (3, settings("sgd", "poisson", batch=2, steps=STEPS), {}),
        "one rank": (1, settings("srm", "poisson", steps=3), {}),
    }
    found = {}
    for name, (ranks, chosen, options) in cases.items():
        at = folder / name.replace(" ", "-")
        plain = changed(chosen, performance=Performance(engine=chosen.performance.engine, threads=1))
        alone = fork_alone(lambda at=at, c=plain: trained(at / "one", c, module=whole()), at / "a")
        group = fork(ranks, lambda _, at=at, c=chosen, o=options: _both(at / "many", c, o), at / "b")
        found[name] = {
            "alone": alone,
            "group": group,
            "before": {n: p.flatten().tolist() for n, p in whole().named_parameters()},
        }
        if all("draws" in rank for rank in group):
            found[name] |= {
                "published": [published(at / run) for run in ("one", "many")],
                "verified": verify(at / "many").ok,
            }
            found[name]["ledgers"] = charges(at / "one") == charges(at / "many")
    return found


def _both(out, chosen, options):
    """A training whose callback runs the sharded model itself, as one does to validate."""
    module, inputs = sharded(**options), records()[0][:5]

    def validate(progress):
        with torch.no_grad():
            validate.seen = progress.model(inputs).tolist()

    found = trained(out, chosen, module=module, callbacks=[validate])
    mine = {name: list(p.to_local().shape) for name, p in module.named_parameters() if hasattr(p, "to_local")}
    return {"draws": found["draws"], "told": found["told"], "head": found["head"], "seen": validate.seen, "mine": mine}


def fsdp_memory(folder):
    """The most numbers of the base that are whole at a time, on each rank, over a training."""
    layers = 6

    def work(rank):
        alive, most, real = [0], [0], Lending.fetch
        fetched = []

        def fetch(self, number):
            found = real(self, number)
            block = self.blocks[number]
            if not block.trained:
                for tensor in found.values():
                    size = tensor.numel()
                    alive[0] += size
                    weakref.finalize(tensor.untyped_storage(), lambda size=size: alive.__setitem__(0, alive[0] - size))
                fetched.append(block.module)
            most[0] = max(most[0], alive[0])
            return found

        Lending.fetch = fetch
        module = sharded(layers)
        train(module, multiclass_loss, records(), settings("srm", "wor", steps=3, batch=20), out=folder / f"run{rank}")
        gc.collect()
        here = sum(p.to_local().numel() for p in module.parameters() if not p.requires_grad)
        return {"most": most[0], "left": alive[0], "here": here, "fetched": len(fetched)}

    base = sum(p.numel() for p in whole(layers).parameters() if not p.requires_grad)
    layer = sum(p.numel() for p in Layer().parameters() if not p.requires_grad)
    return {"ranks": fork(2, work, folder / "g"), "base": base, "layer": layer}


def fsdp_failures(folder):
    """A rank that fails, or is killed: all stop, and the run is gone on with, in shards or whole."""
    chosen, data = settings("srm", "poisson", steps=STEPS, every=2), records()

    def one_fails(rank):
        def losses(model, batch):
            if rank == 1 and losses.calls > 12:
                raise RuntimeError("the disk of rank 1 is full")
            losses.calls += 1
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        losses.calls = 0
        return trained(folder / "fails", chosen, module=sharded(), loss=losses)

    def panics(rank):
        def losses(model, batch):
            if rank == 1 and losses.calls > 12:
                raise GeneratorExit("unwrap on a None value")  # no Exception
            losses.calls += 1
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

        losses.calls = 0
        return trained(folder / "panics", chosen, module=sharded(), loss=losses)

    def unfailing(rank):
        found = trained(folder / "unfailing", chosen, module=sharded())
        return {"told": found["told"], "head": found["head"]}

    def cut(rank):
        real, steps = Lending.fetch, [0]

        def fetch(self, number):
            if rank == 1 and steps[0] == 5:  # in the middle of a pass
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, number)

        Lending.fetch = fetch
        count = lambda progress: steps.__setitem__(0, progress.step)  # noqa: E731
        return trained(folder / "cut", chosen, module=sharded(), callbacks=[count])

    def go_on(out, module):
        run = resume(out, module, multiclass_loss, data)
        return {"head": run.head}

    found = {
        name.__name__: fork(2, name, folder / f"g-{name.__name__}", timeout=90)
        for name in (one_fails, panics, unfailing, cut)
    }
    shutil.copytree(folder / "cut", folder / "cut whole")
    found["again"] = fork(2, lambda _: go_on(folder / "cut", sharded()), folder / "h", timeout=90)
    found["again whole"] = [fork_alone(lambda: go_on(folder / "cut whole", whole()), folder / "i")]
    runs = ("unfailing", "cut", "cut whole")
    found["files"] = len({(folder / run / "model.safetensors").read_bytes() for run in runs})
    found["verified"] = [verify(folder / run).ok for run in runs]
    other = lambda rank: go_on(folder / "unfailing", sharded(3 + rank))  # noqa: E731
    found["other modules"] = fork(2, other, folder / "j", timeout=60)
    return found


class Writes(nn.Module):
    """Counts in a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            self.count.add_(1)
        return self.layer(x)


class Inside(nn.Module):
    """Differentiates inside of its forward."""

    def __init__(self):
        super().__init__()
        self.base, self.scale = nn.Linear(6, 3).requires_grad_(False), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.func.grad(lambda s: (self.base(x) * s).sum())(self.scale).unsqueeze(0) * self.scale


def fsdp_refusals(folder):
    """What cannot be done is refused on all ranks, in one line, before anything is released."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    def go(name, module, chosen=None, callbacks=()):
        return trained(folder / name, chosen or settings(steps=4), module=module, callbacks=callbacks)

    def precision(rank):
        return go("precision", sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))

    def mesh(rank):
        return go("mesh", sharded(mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))))

    def by_hand(rank):
        model, across = whole(), init_device_mesh("cpu", (2,))
        model.first.weight = nn.Parameter(
            distribute_tensor(model.first.weight, across, [Shard(0)]), requires_grad=False
        )
        return go("by_hand", model)

    def functional(rank):
        return go("functional", sharded(), settings(steps=4, performance=Performance(engine="functional", threads=1)))

    def inside(rank):
        return go("inside", fully_shard(Inside()))

    def writes(rank):
        return go("writes", fully_shard(Writes()))

    def moved(rank):
        def move(progress):
            if rank == 1:
                progress.model.layers[0].k.weight.to_local().mul_(2)

        return go("moved", sharded(), callbacks=[torch.no_grad()(move)])

    def optimizer(rank):
        model = sharded()
        chosen = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        return own(folder / "optimizer", model, chosen)

    def only_one(rank):
        return go("only_one", sharded() if rank == 0 else whole())

    cases = (precision, mesh, by_hand, functional, inside, writes, moved, optimizer, only_one)
    return {work.__name__: fork(2, work, folder / f"g-{work.__name__}", timeout=60) for work in cases}


def own(out, model, optimizer):
    """One's own loop over 8 batches."""
    private = make_private(
        model=model,
        losses=multiclass_loss,
        optimizer=optimizer,
        data=records(),
        batch_size=4,
        steps=8,
        epsilon=50.0,
        delta=1e-4,
        noise_multiplier=1.0,
        accountant="rdp",
        method=Srm(max_diff_norm=0.3),
        seed=7,
        out=out,
    )
    for batch in private.data_loader:
        private.step(batch)
    return {"head": private.finish().head}


def fsdp_own_loop(folder):
    """`make_private` with a base in shards: whole adapters under an optimizer of one's own, sharded ones under ours."""

    def whole_adapters(out, model):
        return own(out, model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))

    found = {}
    for name, work in (("own", whole_adapters), ("ours", lambda out, model: own(out, model, None))):
        at = folder / name
        fork_alone(lambda at=at, work=work: work(at / "one", whole()), at / "a")
        said = fork(
            2, lambda _, at=at, work=work: work(at / "two", sharded(trained_too=work is not whole_adapters)), at / "b"
        )
        found[name] = {"said": said}
        if all("head" in rank for rank in said):
            found[name] |= {"published": [published(at / run) for run in ("one", "two")], "ok": verify(at / "two").ok}
    return found


SCENARIOS = {each.__name__: each for each in (fsdp_equality, fsdp_memory, fsdp_failures, fsdp_refusals, fsdp_own_loop)}
