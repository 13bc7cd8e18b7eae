"""A transformer over bytes, as small as it is plain: nothing in it knows about privacy."""

import torch
import torch.nn.functional as F
from corpus import END, LENGTH
from torch import nn


class Block(nn.Module):
    """Causal attention and a feed-forward network, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attend(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.mix(found.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.between(x))))


class ByteModel(nn.Module):
    """For every place of a text, scores of the 256 bytes that may stand there, from those before it."""

    def __init__(self, width=64, depth=2, heads=4):
        super().__init__()
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, 256)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, texts):
        before = F.pad(texts[:, :-1], (1, 0), value=END)
        places = torch.arange(LENGTH, device=texts.device)
        return self.scores(self.norm(self.blocks(self.letters(before) + self.places(places))))


def losses(model, batch):
    """One number per text: the mean over its bytes (one more for its end) of −log p, in nats."""
    texts = batch["text"].long()
    lost = F.cross_entropy(model(texts).transpose(1, 2), texts, reduction="none")
    counted = counts(texts)
    return (lost * counted).sum(1) / counted.sum(1)


def counts(texts):
    """1 where a byte counts: those of the text, and the first that fills up."""
    return (F.pad(texts[:, :-1], (1, 0), value=1) != END).float()


@torch.no_grad()
def bits_per_byte(model, rows):
    """−log₂ p of all bytes of the texts, per byte."""
    bits = total = 0.0
    for texts in torch.from_numpy(rows.copy()).long().split(500):
        lost = F.cross_entropy(model(texts).transpose(1, 2), texts, reduction="none")
        bits, total = bits + float((lost * counts(texts)).sum()), total + float(counts(texts).sum())
    return bits / total / 0.6931471805599453
