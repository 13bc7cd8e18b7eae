"""Every kind of layer people bring: for the table of docs/layers.md, and held to the float64 loop oracle."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from gradients.ghost_cases import Wrapped, parameter, seq

WORDS = "words"
NATIVE, FALLBACK, REFUSED = "native", "torch.func", "refused"


class Standardised(nn.Conv2d):
    """A convolution whose weight is standardised: each filter with mean 0 and variance 1."""

    def forward(self, x):
        mean, variance = self.weight.mean((1, 2, 3), keepdim=True), self.weight.var((1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (variance + 1e-5).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


def stepped(m, x):
    """A cell with one state, run over the positions."""
    h = x.new_zeros(len(x), 4)
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
    return h


def stepped_lstm(m, x):
    h = c = x.new_zeros(len(x), 4)
    for t in range(x.shape[1]):
        h, c = m.cell(x[:, t], (h, c))
    return h


def packed(m, x):
    lengths = (x[:, :, 0] > -9).sum(1).cpu()
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.rnn(sequence)[1][0][0]


def recomputed(reentrant):
    return lambda m, x: checkpoint(lambda z: torch.tanh(m.b(z)), m.a(x), use_reentrant=reentrant)


def routed(m, x):
    """Each example to the expert it chose, by its places."""
    gates, output = m.gate(x).softmax(-1), x.new_zeros(len(x), 3)
    for e, expert in enumerate(m.experts):
        rows = (gates.argmax(-1) == e).nonzero()[:, 0]
        output = output.index_add(0, rows, expert(x[rows]) * gates[rows, e, None])
    return output


def gated(m, x):
    """All experts, with a gate of zero for those that were not chosen."""
    gates = m.gate(x).softmax(-1)
    chosen = gates.topk(1).indices
    gates = torch.zeros_like(gates).scatter(-1, chosen, gates.gather(-1, chosen))
    return sum(expert(x) * gates[:, e : e + 1] for e, expert in enumerate(m.experts))


def experts(run):
    return Wrapped(run, gate=nn.Linear(4, 2), experts=nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]))


def encoded(m, x):
    """A variational autoencoder; its noise is the end of the input."""
    x, noise = x[:, :4], x[:, 4:]
    hidden = torch.tanh(m.encoder(x))
    mean, spread = m.mean(hidden), m.spread(hidden)
    kl = (mean.square() + spread.exp() - spread - 1).sum(1, keepdim=True)
    return torch.cat([m.decoder(mean + (spread / 2).exp() * noise) - x, kl], 1)


def autoencoder(latent):
    return Wrapped(
        encoded,
        encoder=nn.Linear(4, 5),
        mean=nn.Linear(5, latent),
        spread=nn.Linear(5, latent),
        decoder=nn.Linear(latent, 4),
    )


def penalised(m, x):
    hidden = m.a(x)
    output = m.b(torch.tanh(hidden))
    (gradient,) = torch.autograd.grad(output.sum(), hidden, create_graph=True)
    return output + gradient.square().sum(1, keepdim=True)


def rewritten(m, x):
    """A tensor made of a parameter, used, changed in place, and used again."""
    weight = m.w * 1
    first = F.linear(x, weight)
    weight.mul_(2)
    return first + F.linear(torch.tanh(x), weight)


def unet(m, x):
    down = torch.tanh(m.a(x))
    up = m.up(torch.tanh(m.b(F.max_pool2d(down, 2))))
    return m.c(torch.cat([down, F.interpolate(up, scale_factor=1)], 1))


def attended(*, kinds=(4, 4, 4), **options):
    def run(m, x):
        return m.attention(*(x[..., :kind] for kind in kinds))[0]

    return Wrapped(run, attention=nn.MultiheadAttention(4, 2, batch_first=True, **options))


def apart(m, x):
    with torch.no_grad():
        constant = m.w(x) * m.p
    return m.w(x) * torch.sigmoid(m.p.detach()) + constant


def recurrent(kind, *options, **named):
    return Wrapped(lambda m, x: m.rnn(x)[0], rnn=kind(3, 4, *options, batch_first=True, **named))


def weights(run, **shapes):
    return Wrapped(run, **{name: parameter(*shape) for name, shape in shapes.items()})


def cases():
    """name → (module, shape of one input or WORDS, how it is computed)."""
    line, positions, image = (4,), (5, 4), (2, 4, 4)
    return {
        "nn.RNN": (recurrent(nn.RNN, 2), (5, 3), NATIVE),
        "nn.RNN, relu, both ways": (recurrent(nn.RNN, nonlinearity="relu", bidirectional=True), (5, 3), NATIVE),
        "nn.LSTM with proj_size": (recurrent(nn.LSTM, 2, proj_size=2, bidirectional=True), (5, 3), NATIVE),
        "nn.LSTMCell": (Wrapped(stepped_lstm, cell=nn.LSTMCell(3, 4)), (5, 3), NATIVE),
        "nn.GRUCell": (Wrapped(stepped, cell=nn.GRUCell(3, 4)), (5, 3), NATIVE),
        "nn.RNNCell": (Wrapped(stepped, cell=nn.RNNCell(3, 4)), (5, 3), NATIVE),
        "packed sequences": (Wrapped(packed, rnn=nn.LSTM(3, 4, batch_first=True)), (5, 3), REFUSED),
        "nn.Embedding, sparse": (seq(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 2)), WORDS, NATIVE),
        "nn.EmbeddingBag, mean": (seq(nn.EmbeddingBag(7, 4), nn.Linear(4, 2)), WORDS, NATIVE),
        "nn.EmbeddingBag, sum": (
            seq(nn.EmbeddingBag(7, 4, mode="sum", padding_idx=2), nn.Linear(4, 2)),
            WORDS,
            NATIVE,
        ),
        "nn.EmbeddingBag, max": (seq(nn.EmbeddingBag(7, 4, mode="max"), nn.Linear(4, 2)), WORDS, NATIVE),
        "positions by nn.Embedding": (
            Wrapped(lambda m, x: x + m.e(torch.arange(x.shape[1])), e=nn.Embedding(9, 4)),
            positions,
            NATIVE,
        ),
        "nn.ConvTranspose1d": (nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1), (3, 5), NATIVE),
        "nn.ConvTranspose2d, groups": (nn.ConvTranspose2d(4, 6, 3, 2, groups=2, dilation=2), (4, 5, 4), NATIVE),
        "nn.ConvTranspose3d": (nn.ConvTranspose3d(2, 3, 2), (2, 3, 3, 3), NATIVE),
        "nn.PReLU": (seq(nn.Conv2d(2, 3, 2), nn.PReLU(3), nn.PReLU()), image, NATIVE),
        "nn.Bilinear": (Wrapped(lambda m, x: m.b(x, x.tanh()), b=nn.Bilinear(4, 4, 3)), line, NATIVE),
        "nn.BatchNorm in evaluation mode, 1d": (seq(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval(), line, NATIVE),
        "nn.BatchNorm in evaluation mode, 2d": (seq(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)).eval(), image, NATIVE),
        "nn.AdaptiveLogSoftmaxWithLoss": (
            Wrapped(lambda m, x: m.a.log_prob(x), a=nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2, 4], div_value=2)),
            line,
            NATIVE,
        ),
        "nn.MultiheadAttention, add_bias_kv": (attended(add_bias_kv=True), positions, NATIVE),
        "nn.MultiheadAttention, kdim and vdim": (attended(kinds=(4, 3, 2), kdim=3, vdim=2), positions, NATIVE),
        "nn.Transformer": (
            Wrapped(lambda m, x: m.t(x, x.tanh()), t=nn.Transformer(4, 2, 1, 1, 6, dropout=0.0, batch_first=True)),
            positions,
            NATIVE,
        ),
        "weight norm": (seq(parametrizations.weight_norm(nn.Conv2d(2, 3, 2))), image, NATIVE),
        "spectral norm": (parametrizations.spectral_norm(nn.Linear(4, 3)), line, NATIVE),
        "orthogonal weights": (parametrizations.orthogonal(nn.Linear(4, 4)), line, NATIVE),
        "weight standardisation": (
            seq(Standardised(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), Standardised(4, 4, 2)),
            image,
            NATIVE,
        ),
        "position embedding, sliced": (
            weights(lambda m, x: torch.tanh(x + m.p[:, : x.shape[1]]) @ m.w, p=(1, 9, 4), w=(4, 3)),
            positions,
            NATIVE,
        ),
        "class token": (
            Wrapped(
                lambda m, x: m.w(torch.cat([m.c.expand(len(x), -1, -1), x], 1)).tanh(),
                c=parameter(1, 1, 4),
                w=nn.Linear(4, 3),
            ),
            positions,
            NATIVE,
        ),
        "p.exp(), x − p, x / p": (
            weights(lambda m, x: (x - m.p) / (m.q * m.q + 1) + x * m.p.exp(), p=(4,), q=(4,)),
            positions,
            NATIVE,
        ),
        "add_ and mul_": (
            Wrapped(lambda m, x: m.w(x).add_(m.p).mul_(m.q), w=nn.Linear(4, 3), p=parameter(3), q=parameter()),
            line,
            NATIVE,
        ),
        "addmm": (weights(lambda m, x: torch.addmm(m.b, x, m.w), b=(3,), w=(4, 3)), line, NATIVE),
        "addmm, beta and alpha": (
            weights(lambda m, x: torch.addmm(m.b, x, m.w, beta=2.0, alpha=0.5), b=(3,), w=(4, 3)),
            line,
            NATIVE,
        ),
        "matmul, weight on the left": (weights(lambda m, x: m.w @ x.transpose(1, 2), w=(3, 4)), positions, NATIVE),
        "einsum": (weights(lambda m, x: torch.einsum("btd,hde->bhte", x, m.w).tanh(), w=(2, 4, 3)), positions, NATIVE),
        "bmm": (
            weights(lambda m, x: torch.bmm(x.expand(2, -1, -1), m.w).tanh().sum(0, keepdim=True), w=(2, 4, 3)),
            positions,
            NATIVE,
        ),
        "torch.where": (weights(lambda m, x: torch.where(x > 0, x, m.p), p=(4,)), positions, NATIVE),
        "slices that overlap": (
            weights(lambda m, x: F.linear(F.linear(x, m.w[:4]).tanh(), m.w[2:]), w=(6, 4)),
            line,
            NATIVE,
        ),
        "chunk": (weights(lambda m, x: sum(F.linear(x, w).tanh() for w in m.w.chunk(3)), w=(9, 4)), positions, NATIVE),
        "w.T": (weights(lambda m, x: F.linear(x, m.w.T), w=(4, 3)), positions, NATIVE),
        "a weight of low rank": (weights(lambda m, x: F.linear(x, m.a @ m.b), a=(3, 2), b=(2, 4)), positions, NATIVE),
        "a weight with a mask": (
            weights(lambda m, x: F.linear(x, m.w * (torch.arange(4) < 3)), w=(3, 4)),
            positions,
            NATIVE,
        ),
        "straight-through rounding": (
            weights(lambda m, x: F.linear(x, m.w + (m.w.round() - m.w).detach()), w=(3, 4)),
            line,
            NATIVE,
        ),
        "DropConnect, p = 0": (weights(lambda m, x: F.linear(x, F.dropout(m.w, 0.0)), w=(3, 4)), line, NATIVE),
        "a branch on a parameter": (weights(lambda m, x: x * (m.p if m.p > 0 else -m.p), p=()), line, NATIVE),
        "Fourier transform": (
            weights(lambda m, x: torch.fft.irfft(torch.fft.rfft(x) * m.p, n=4), p=(3,)),
            line,
            NATIVE,
        ),
        "torch.no_grad inside": (Wrapped(apart, w=nn.Linear(4, 3), p=parameter(3)), line, NATIVE),
        "U-Net": (
            Wrapped(
                unet,
                a=nn.Conv2d(2, 3, 3, padding=1),
                b=nn.Conv2d(3, 3, 3, padding=1),
                up=nn.ConvTranspose2d(3, 3, 2, 2),
                c=nn.Conv2d(6, 2, 1),
            ),
            image,
            NATIVE,
        ),
        "VAE, 1 latent": (autoencoder(1), (5,), NATIVE),
        "VAE, 3 latents": (autoencoder(3), (7,), NATIVE),
        "MoE, all experts with a gate": (experts(gated), line, NATIVE),
        "MoE, routed by nonzero": (experts(routed), line, REFUSED),
        "activation checkpointing": (
            Wrapped(recomputed(False), a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
            line,
            REFUSED,
        ),
        "activation checkpointing, reentrant": (
            Wrapped(recomputed(True), a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
            line,
            REFUSED,
        ),
        "torch.autograd.grad inside": (Wrapped(penalised, a=nn.Linear(4, 5), b=nn.Linear(5, 1)), line, FALLBACK),
        "torch.func.grad inside": (
            Wrapped(
                lambda m, x: torch.func.grad(lambda z: m.b(torch.tanh(m.a(z))).sum())(x),
                a=nn.Linear(4, 5),
                b=nn.Linear(5, 1),
            ),
            line,
            FALLBACK,
        ),
        "torch.vmap inside": (
            Wrapped(lambda m, x: torch.vmap(m.w)(x[0])[None], w=nn.Linear(4, 3)),
            positions,
            FALLBACK,
        ),
        "a made weight, changed in place": (weights(rewritten, w=(3, 4)), line, FALLBACK),
    }


CASES = list(cases())
RUNS = [name for name, (_, _, how) in cases().items() if how != REFUSED]
