"""Small modules that use every rule of the ghost engine, and the comparison with the float64 loop oracle."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.gradients import LoopEngine, Objective, Part, Query

WORDS = 11


class Wrapped(nn.Module):
    """A module with a forward of its own: `run(layers, x)`."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.run(self, x)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


def seq(*layers):
    return nn.Sequential(*layers)


def frozen(layer):
    return layer.requires_grad_(False)


def tied():
    """An embedding whose weight is also the last layer's."""
    module = Wrapped(
        lambda m, x: m.out(torch.tanh(m.middle(m.words(x)))),
        words=nn.Embedding(WORDS, 4),
        middle=nn.Linear(4, 4),
        out=nn.Linear(4, WORDS),
    )
    module.out.weight = module.words.weight
    return module


def attended(m, x):
    return m.out(m.attention(x, x, x, need_weights=m.weights)[0])


def crossed(m, x):
    mask = torch.arange(x.shape[1]) > 2
    return m.attention(x[:, :2], x, torch.tanh(x), key_padding_mask=mask.expand(len(x), -1))[0]


def cases():
    """name → (module, shape of one input, whether inputs are words)."""
    conv = (3, 7, 8)
    return {
        "linear": (seq(nn.Linear(5, 3)), (5,), False),
        "linear-leading": (seq(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), (2, 3, 5), False),
        "linear-long": (seq(nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 40)), (9, 3), False),
        "linear-wide": (seq(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 20)), (2, 30), False),
        "conv1d": (seq(nn.Conv1d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv1d(4, 2, 2)), (3, 9), False),
        "conv2d": (
            seq(nn.Conv2d(3, 4, 3, 2, 1), nn.Tanh(), nn.Conv2d(4, 2, (2, 3), dilation=(1, 2))),
            (3, 9, 12),
            False,
        ),
        "conv2d-same": (seq(nn.Conv2d(3, 2, (4, 3), padding="same", dilation=(1, 2)), nn.Tanh()), conv, False),
        "conv2d-reflect": (seq(nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect")), conv, False),
        "conv2d-groups": (
            seq(nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 2, groups=6)),
            (4, 7, 7),
            False,
        ),
        "conv2d-large": (
            seq(nn.Conv2d(2, 16, 1), nn.Tanh(), nn.Conv2d(16, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(4)),
            (2, 16, 16),
            False,
        ),
        "channels-last": (
            seq(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 5, 2, stride=2)),
            (1, 13, 13),
            False,
        ),
        "conv2d-gram": (seq(nn.Conv2d(3, 12, 3), nn.Tanh(), nn.Conv2d(12, 20, 3, stride=2)), (3, 7, 7), False),
        "conv3d": (seq(nn.Conv3d(2, 3, (1, 2, 3), padding=(0, 1, 1))), (2, 3, 4, 4), False),
        "conv-pool": (
            seq(nn.Conv2d(1, 8, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2, 1), nn.Conv2d(8, 8, 2)),
            (1, 7, 7),
            False,
        ),
        "embedding": (seq(nn.Embedding(WORDS, 4, padding_idx=2), nn.Linear(4, 2)), (6,), True),
        "embedding-bag-free": (Wrapped(lambda m, x: m.e(x[:, 0]), e=nn.Embedding(WORDS, 3)), (2,), True),
        "layer-norm": (seq(nn.Linear(4, 6), nn.LayerNorm((3, 6)), nn.Tanh(), nn.LayerNorm(6)), (2, 3, 4), False),
        "rms-norm": (seq(nn.Linear(4, 6), nn.RMSNorm(6), nn.Tanh(), nn.RMSNorm((3, 6))), (3, 4), False),
        "group-norm": (seq(nn.Conv2d(3, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.GroupNorm(7, 168)), conv, False),
        "instance-norm": (
            seq(nn.Conv2d(3, 4, 2), nn.InstanceNorm2d(4, affine=True, track_running_stats=False)),
            conv,
            False,
        ),
        "instance-norm-eval": (
            seq(nn.Conv1d(3, 4, 2), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)).eval(),
            (3, 5),
            False,
        ),
        "bias-only": (
            Wrapped(lambda m, x: torch.tanh(m.p + x) + m.q, p=parameter(4), q=parameter(1, 3, 1)),
            (3, 4),
            False,
        ),
        "bias-per-position": (
            Wrapped(lambda m, x: F.linear(x, m.w, m.b), w=parameter(1, 4), b=parameter(3, 1)),
            (3, 4),
            False,
        ),
        "bias-for-all-outputs": (
            Wrapped(lambda m, x: F.linear(torch.tanh(F.linear(x, m.w, m.b)), m.w), w=parameter(4, 4), b=parameter(1)),
            (4,),
            False,
        ),
        "bias-used-elsewhere": (
            Wrapped(lambda m, x: F.linear(x, m.w, m.b) * m.b, w=parameter(1, 4), b=parameter(3, 1)),
            (3, 4),
            False,
        ),
        "addmm-bias-for-all-outputs": (
            Wrapped(lambda m, x: torch.addmm(m.b, x, m.w), w=parameter(4, 3), b=parameter(1)),
            (4,),
            False,
        ),
        "scale-is-shift": (
            Wrapped(
                lambda m, x: F.group_norm(F.layer_norm(x, (4,), m.p, m.p), 3, m.q, m.q), p=parameter(4), q=parameter(3)
            ),
            (3, 4),
            False,
        ),
        "gain": (Wrapped(lambda m, x: torch.tanh(m.p * x) * m.q, p=parameter(4), q=parameter()), (3, 4), False),
        "shared": (Wrapped(lambda m, x: m.w(torch.tanh(m.w(x))), w=nn.Linear(4, 4)), (4,), False),
        "shared-conv": (Wrapped(lambda m, x: m.w(torch.tanh(m.w(x))), w=nn.Conv2d(2, 2, 2)), (2, 5, 5), False),
        "tied": (tied(), (5,), True),
        "lstm": (
            Wrapped(
                lambda m, x: m.out(m.rnn(x)[0]),
                rnn=nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
                out=nn.Linear(8, 2),
            ),
            (5, 3),
            False,
        ),
        "lstm-time-first": (
            Wrapped(lambda m, x: m.rnn(x.transpose(0, 1))[1][0][0], rnn=nn.LSTM(3, 4, bias=False)),
            (5, 3),
            False,
        ),
        "gru": (Wrapped(lambda m, x: m.rnn(x)[0][:, -1], rnn=nn.GRU(3, 4, 2, batch_first=True)), (5, 3), False),
        "attention": (
            Wrapped(attended, attention=nn.MultiheadAttention(4, 2, batch_first=True), out=nn.Linear(4, 2)),
            (5, 4),
            False,
        ),
        "cross-attention": (Wrapped(crossed, attention=nn.MultiheadAttention(4, 2, batch_first=True)), (5, 4), False),
        "encoder": (nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True), (5, 4), False),
        "encoder-eval": (nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True).eval(), (5, 4), False),
        "encoder-time-first": (
            Wrapped(lambda m, x: m.e(x.transpose(0, 1))[0], e=nn.TransformerEncoderLayer(4, 1, 6, dropout=0.0)),
            (5, 4),
            False,
        ),
        "flattened": (Wrapped(lambda m, x: m.w(x.reshape(-1, 4)).view(len(x), -1), w=nn.Linear(4, 3)), (5, 4), False),
        "prelu": (seq(nn.Linear(4, 6), nn.PReLU(3), nn.Flatten(), nn.Linear(18, 2)), (3, 4), False),
        "conv-transpose": (
            seq(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.ConvTranspose2d(3, 2, 2), nn.Flatten()),
            (2, 4, 4),
            False,
        ),
        "derived": (
            Wrapped(lambda m, x: m.w(x) ** 2 * m.p.exp(), w=nn.Linear(4, 3), p=parameter(3)),
            (4,),
            False,
        ),
        "frozen-trunk": (
            seq(frozen(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), frozen(nn.Linear(5, 2))),
            (4,),
            False,
        ),
        "unused": (Wrapped(lambda m, x: m.w(x), w=nn.Linear(4, 3), p=nn.Linear(2, 2)), (4,), False),
    }


CASES = sorted(cases())
_OPTIONS = {"attention": {"weights": True}}


def losses(outputs, targets):
    """One smooth loss per example."""
    return (outputs.flatten(1) - targets[:, None]).square().mean(1)


def problem(name, b, *, seed=0):
    """The objective of a case, its float64 twin, and b records."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module, shape, words = cases()[name]
        inputs = torch.randint(WORDS, (b, *shape)) if words else torch.randn(b, *shape)
        targets = torch.randn(b)
    for option, value in _OPTIONS.get(name, {}).items():
        setattr(module, option, value)
    return Objective.of(module, losses), twin(module), inputs, targets


def twin(module):
    """The same objective in float64."""
    return Objective.of(copy.deepcopy(module).double(), lambda outputs, targets: losses(outputs, targets.double()))


def query_of(objective, kind, *, C1=1.0, C2=None, only_difference=False, seed=5):
    """One point; or two, near (1e-4 apart) or far (1 apart), with DP-SRM's parts."""
    here_P = objective.layout.read(objective.module)
    if kind == "one":
        return Query(points=(here_P,), parts=(Part(coefficients=(1.0,), clip=C1),))
    step_P = torch.randn(len(here_P), generator=torch.Generator().manual_seed(seed), dtype=here_P.dtype)
    distance = {"near": 1e-4, "far": 1.0}[kind]
    points = (here_P, here_P + distance * step_P / step_P.norm())
    difference = Part(coefficients=(1.0, -1.0), clip=C2 or C1 * distance, weight=0.7, name="difference")
    gradient = Part(coefficients=(1.0, 0.0), clip=C1, weight=0.3)
    return Query(points=points, parts=(difference,) if only_difference else (difference, gradient))


def oracle(exact, query, batch):
    """The float64 loop's answer to the same query."""
    inputs, targets = batch
    points = tuple(point_P.double() for point_P in query.points)
    asked = Query(points=points, parts=query.parts, excess=query.excess)
    return LoopEngine(exact)(asked, (inputs.double() if inputs.is_floating_point() else inputs, targets))


def relative_error(found_P, expected_P):
    """‖found − expected‖ ÷ ‖expected‖."""
    return float((found_P - expected_P).norm() / expected_P.norm().clamp_min(1e-30))


def softmax_loss(outputs, targets):
    """Cross-entropy per example."""
    return F.cross_entropy(outputs, targets, reduction="none")
