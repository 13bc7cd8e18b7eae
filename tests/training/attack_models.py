"""Modules and losses that write down what they see, or treat the examples of a batch together, strongly."""

import torch
import torch.nn.functional as F
from torch import nn

from gradients.ghost_cases import Wrapped, losses
from gradients.isolation_cases import CASES, in_batch_negatives

FEATURES = 4


class Writes(nn.Module):
    """A linear layer that adds what it remembers to its input; `how(self, x)` says where it is written."""

    def __init__(self, how):
        """Places to write into: a buffer, a frozen parameter, a tensor, a list, a dict, a number."""
        super().__init__()
        self.how, self.w = how, nn.Linear(FEATURES, 3)
        self.register_buffer("seen", torch.zeros(FEATURES))
        self.frozen = nn.Parameter(torch.zeros(FEATURES), requires_grad=False)
        self.plain, self.list, self.dict, self.calls = torch.zeros(FEATURES), [], {}, 0

    def forward(self, x):
        """Remember, then use all that is remembered."""
        self.how(self, x)
        kept = sum(self.list[-1:]) + sum(self.dict.values())
        return self.w(x + self.seen + self.frozen + self.plain + kept)


class ActNorm(nn.Module):
    """Glow's layer: shift and scale, both trained, are set from the first batch it sees."""

    def __init__(self):
        """Not started yet."""
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(FEATURES)), nn.Parameter(torch.ones(FEATURES))
        self.register_buffer("started", torch.tensor(0.0))

    def forward(self, x):
        """Start, if it has not, by arithmetic: a branch would be refused for another reason."""
        old = self.started
        self.shift.data.copy_(old * self.shift.data + (1 - old) * x.detach().mean(0))
        self.started.fill_(1.0)
        return self.scale * (x - self.shift)


class BranchingActNorm(ActNorm):
    """The same as it is usually written: by a branch on the buffer."""

    def forward(self, x):
        """Start, if it has not."""
        if not bool(self.started):
            self.shift.data.copy_(x.detach().mean(0))
            self.scale.data.copy_(1 / (x.detach().abs().mean(0) + 0.1))
            self.started.fill_(1.0)
        return self.scale * (x - self.shift)


class RunningLoss(nn.Module):
    """A loss that centres outputs by a running mean in a buffer."""

    def __init__(self):
        """Nothing seen yet."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.history = []

    def forward(self, outputs, targets):
        """Remember, centre, compare."""
        self.mean.mul_(0.9).add_(0.1 * outputs.detach().mean())
        self.history.append(outputs.detach().mean())
        return losses(outputs - self.mean, targets)


def exchanged(m, x):
    """A buffer that is exchanged, not written in place."""
    m.seen = 0.9 * m.seen + 0.1 * x.detach().mean(0)


def noted(m, x):
    """An attribute that is exchanged."""
    m.plain, m.calls = 0.9 * m.plain + x.detach().mean(0), m.calls + 1


class Counts(nn.Module):
    """Counts its calls in a frozen parameter that nothing reads: no record is in it, and still it is not the user's."""

    def __init__(self):
        """No call yet."""
        super().__init__()
        self.w, self.frozen = nn.Linear(FEATURES, 3), nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x):
        """Count, then compute."""
        self.frozen.data.add_(1)
        return torch.tanh(self.w(x))


WRITERS = {
    "InstanceNorm1d with statistics": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten(), linear()
    ),
    "InstanceNorm2d with statistics": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 1)), nn.InstanceNorm2d(2, affine=True, track_running_stats=True), nn.Flatten(), linear()
    ),
    "EMA buffer": lambda: Writes(lambda m, x: m.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))),
    "exchanged buffer": lambda: Writes(exchanged),
    "frozen parameter": lambda: Writes(lambda m, x: m.frozen.copy_(x.detach().mean(0))),
    "frozen parameter's data": lambda: Writes(lambda m, x: m.frozen.data.copy_(x.detach().mean(0))),
    "ActNorm": lambda: nn.Sequential(ActNorm(), linear()),
    "ActNorm with a branch": lambda: nn.Sequential(BranchingActNorm(), linear()),
    "trained parameter's data": lambda: Writes(lambda m, x: m.w.bias.data.copy_(x.detach().mean(0)[:3])),
    "spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(linear()), nn.Tanh()),
    "plain tensor": lambda: Writes(lambda m, x: m.plain.add_(x.detach().mean(0))),
    "list": lambda: Writes(lambda m, x: m.list.append(x.detach().mean(0))),
    "dict": lambda: Writes(lambda m, x: m.dict.update(last=x.detach().mean(0))),
    "attribute": lambda: Writes(noted),
    "number of calls": Counts,
    "trained parameter halved": lambda: Writes(lambda m, x: m.w.weight.data.mul_(0.5)),
    "loss with a running buffer": lambda: nn.Sequential(linear()),
}
"""Modules that write, by where."""


def linear():
    """The last layer of most."""
    return nn.Linear(FEATURES, 3)


def loss_for(name):
    """The loss that belongs to a case."""
    return RunningLoss() if name == "loss with a running buffer" else losses


def records(count=8):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, FEATURES, generator=generator), torch.randn(count, generator=generator)


def replaced_in(data, who):
    """The same records with another one at place `who`, far from all others."""
    inputs, targets = data[0].clone(), data[1].clone()
    inputs[who] = torch.tensor([50.0, -70.0, 90.0, -110.0])
    targets[who] = -40.0
    return inputs, targets


def two_layers(run):
    """Two layers, one of which `run` may show the batch in another order."""
    return Wrapped(run, first=nn.Linear(FEATURES, 5), out=nn.Linear(5, 2))


def in_order(order):
    """The first layer on the batch in another order, the last on the batch as it is: rows of two examples meet."""

    def run(m, x):
        places = order(x)
        return m.out(torch.tanh(m.first(x[places]))[places.argsort()])

    return run


def dispatched(m, x):
    """Sorted by expert, run, restored; then a layer for all."""
    chosen = (x[:, 0] < 0).long()
    places = chosen.argsort(stable=True)
    both = torch.stack([m.a(x[places]), m.b(x[places])], 1)[torch.arange(len(x)), chosen[places]]
    return m.out(torch.tanh(both)[places.argsort()])


def balanced(outputs, targets):
    """Softmax shifted against the batch's larger class, far."""
    classes = (targets > 0).long()
    shift = -60 * F.one_hot(classes, 2).to(outputs.dtype).mean(0)
    return F.cross_entropy(outputs[:, :2] + shift, classes, reduction="none")


def scaled(outputs, targets):
    """Targets divided by the batch's largest."""
    return losses(outputs, targets / targets.abs().max())


def opposed(count=6):
    """One record with a large target among small ones, and the same with its target's sign turned."""
    inputs, targets = records(count)
    targets = targets / 10
    targets[0] = 100.0
    turned = targets.clone()
    turned[0] = -100.0
    return (inputs, targets), (inputs, turned)


def extreme(count=6):
    """Ordinary records, and the same with another record 0, far from all others."""
    base = records(count)
    return base, replaced_in(base, 0)


def positive(count=6):
    """Records that agree about their target, and the same with a huge one."""
    inputs, targets = records(count)
    targets = 1 + 0.1 * targets
    other = targets.clone()
    other[0] = -1000.0
    return (inputs.abs(), targets), (inputs.abs(), other)


def halves(count=6):
    """As many records of each class, and the same with one changing sides."""
    inputs, targets = records(count)[0], torch.ones(count)
    targets[::2] = -1.0
    other = targets.clone()
    other[0] = 1.0
    return (inputs.abs(), targets), (inputs.abs(), other)


def text(count=6):
    """Words, with a large target at record 0, and the same with its sign turned."""
    words = torch.randint(7, (count, 5), generator=torch.Generator().manual_seed(0))
    return tuple((words, each[1]) for each in opposed(count))


ATTACKS = {
    "sort by length": (lambda: two_layers(in_order(lambda x: x.abs().sum(1).argsort())), losses, opposed),
    "sorted dispatch": (
        lambda: Wrapped(dispatched, a=nn.Linear(FEATURES, 5), b=nn.Linear(FEATURES, 5), out=nn.Linear(5, 2)),
        losses,
        opposed,
    ),
    "flip": (lambda: two_layers(in_order(lambda x: torch.arange(len(x)).flip(0))), losses, opposed),
    "mixup in forward": (
        lambda: two_layers(lambda m, x: m.out(m.first(0.6 * x + 0.4 * x[torch.randperm(len(x))]))),
        losses,
        extreme,
    ),
    "in-batch negatives": (lambda: two_layers(lambda m, x: m.out(m.first(x))), in_batch_negatives, extreme),
    "targets scaled by the batch": (lambda: two_layers(lambda m, x: m.out(m.first(x))), scaled, positive),
    "balanced softmax": (lambda: two_layers(lambda m, x: m.out(m.first(x))), balanced, halves),
    "centred by the batch": (lambda: two_layers(lambda m, x: m.out(m.first(x - x.mean(0) / 2))), losses, extreme),
    "weight norm": (CASES["weight norm"][0], losses, opposed),
    "tied weights": (CASES["tied weights"][0], losses, text),
}
"""Modules and losses, with neighbouring records between which a library that runs whole batches would move too far."""
