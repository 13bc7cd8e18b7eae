"""Modules and losses that break a library which runs whole batches: each must equal the loop oracle, or be refused."""

import torch
import torch.nn.functional as F
from torch import nn

from gradients.ghost_cases import Wrapped, losses


def by_length(m, x):
    """Sorts the batch by length, runs it, and restores the order."""
    order = (x != 0).sum(1).argsort()
    return m.out(m.words(x[order]).mean(1))[order.argsort()]


def dispatched(m, x):
    """Sorts by the chosen expert and restores the order."""
    scores = m.gate(x)
    order = scores.argmax(1).argsort()
    y = torch.stack([m.a(x[order]), m.b(x[order])], 1)[torch.arange(len(x)), scores.argmax(1)[order]]
    return y[order.argsort()]


def mixed_up(m, x):
    """Mixup inside forward."""
    return m.w(0.7 * x + 0.3 * x[torch.randperm(len(x))])


def branching(m, x):
    """Takes another path where values are large."""
    return m.w(x) if x.abs().max() > 1 else m.w(2 * x)


def packed(m, x):
    """An LSTM over packed sequences."""
    lengths = (x[:, :, 0] > -9).sum(1).cpu()
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.rnn(sequence)[1][0][0]


def scaled_targets(outputs, targets):
    """Targets divided by the batch's largest."""
    return losses(outputs, targets / targets.abs().max())


def balanced(outputs, targets):
    """Softmax balanced by the batch's class counts."""
    classes = (targets > 0).long()
    return F.cross_entropy(outputs[:, :2] + F.one_hot(classes, 2).float().mean(0), classes, reduction="none")


def in_batch_negatives(outputs, targets):
    """A contrastive loss against the other examples."""
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")


def tied():
    """An embedding whose weight is also the last layer's."""
    words, out = nn.Embedding(7, 4), nn.Linear(4, 7)
    out.weight = words.weight
    return Wrapped(lambda m, x: m.out(torch.tanh(m.words(x)).mean(1)), words=words, out=out)


class Centred(nn.Module):
    """A layer with a function of the batch inside."""

    def __init__(self, how):
        super().__init__()
        self.how, self.w = how, nn.Linear(4, 4)

    def forward(self, x):
        return self.how(self.w(x))


def centred(how):
    return nn.Sequential(nn.Linear(4, 4), Centred(how), nn.Linear(4, 2))


def linear(run):
    return Wrapped(run, w=nn.Linear(4, 3))


def expert():
    return Wrapped(dispatched, gate=nn.Linear(4, 2), a=nn.Linear(4, 3), b=nn.Linear(4, 3))


_DRAW = torch.Generator().manual_seed(0)


def norm(*shape):
    return torch.randn(shape, generator=_DRAW)


def words(*shape):
    return torch.randint(7, shape, generator=_DRAW)


CASES = {
    "sort by length": (lambda: Wrapped(by_length, words=nn.Embedding(7, 4), out=nn.Linear(4, 3)), losses, words(6, 5)),
    "sorted dispatch": (expert, losses, norm(6, 4)),
    "flip": (lambda: linear(lambda m, x: m.w(x.flip(0)).flip(0)), losses, norm(6, 4)),
    "mixup in forward": (lambda: linear(mixed_up), losses, norm(6, 4)),
    "in-batch negatives": (lambda: linear(lambda m, x: m.w(x)), in_batch_negatives, norm(6, 4)),
    "targets scaled by the batch": (lambda: linear(lambda m, x: m.w(x)), scaled_targets, norm(6, 4)),
    "balanced softmax": (lambda: linear(lambda m, x: m.w(x)), balanced, norm(6, 4)),
    "value-dependent branch": (lambda: linear(branching), losses, norm(6, 4)),
    "packed LSTM": (lambda: Wrapped(packed, rnn=nn.LSTM(3, 4, batch_first=True)), losses, norm(6, 5, 3)),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh()),
        losses,
        norm(6, 4),
    ),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.Tanh()),
        losses,
        norm(6, 4),
    ),
    "a bias made of the example": (
        lambda: linear(lambda m, x: F.linear(x, m.w.weight, x.mean(0)[:3]) + m.w.bias),
        losses,
        norm(6, 4),
    ),
    "tied weights": (tied, losses, words(6, 5)),
    "centred by the batch": (lambda: centred(lambda x: x - x.mean(0)), losses, norm(6, 4)),
    "centred, detached": (lambda: centred(lambda x: x - x.mean(0).detach()), losses, norm(6, 4)),
    "cumulative sum": (lambda: centred(lambda x: x.cumsum(0)), losses, norm(6, 4)),
    "rolled": (lambda: centred(lambda x: x + 1e-3 * x.roll(1, 0)), losses, norm(6, 4)),
    "divided by the batch size": (lambda: centred(lambda x: x / len(x)), losses, norm(6, 4)),
    "attention across examples": (lambda: centred(lambda x: torch.softmax(x @ x.T, -1) @ x), losses, norm(6, 4)),
    "examples as positions": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), losses, norm(6, 3, 4)),
    "functional batch norm": (
        lambda: centred(lambda x: F.batch_norm(x, None, None, training=True)),
        losses,
        norm(6, 4),
    ),
    "batch norm in evaluation mode": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(),
        losses,
        norm(6, 4),
    ),
}
