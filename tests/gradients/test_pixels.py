"""Products of large linear layers as convolutions: the oracle's numbers, each example by itself, where they fit."""

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from dpsrm.gradients import GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.gradients.ghost import pixels
from dpsrm.gradients.ghost.recording import record
from gradients.ghost_cases import Wrapped, frozen, relative_error

ROWS, WIDTH, WIDE = pixels.FEWEST_ROWS, pixels.NARROWEST, 2 * pixels.NARROWEST


@pytest.fixture(autouse=True)
def on_such_a_processor(monkeypatch):
    """Whatever processor runs the tests: the code is the same, only its speed is not."""
    if not pixels._ONEDNN.is_available():
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(pixels, "_slow_products", lambda: True)


@pytest.fixture
def seen(monkeypatch):
    """The shapes of the weights of all convolutions, as they are run."""
    shapes, run = [], F.conv2d

    def counted(x, weight, *others):
        shapes.append(tuple(weight.shape[:2]))
        return run(x, weight, *others)

    monkeypatch.setattr(pixels.F, "conv2d", counted)
    return shapes


def forward(m, x):
    h = m.first(x)
    h = h + m.up(torch.tanh(m.down(h)))
    return m.last(torch.tanh(m.back(torch.tanh(m.wide(h)))).mean(1))


def written(m, x):
    """A frozen layer whose input is written into afterwards, which its way back does not need."""
    h = torch.tanh(m.first(x)) * 1.5
    y = m.wide(h)
    h.mul_(2.0)
    return m.last((m.back(torch.tanh(y)) + h).mean(1))


def made(run=forward, *, trained=()):
    """A frozen trunk with a narrow trained branch, as LoRA has it; layers named in `trained` are trained, too."""
    torch.manual_seed(3)
    layers = {
        "first": nn.Linear(WIDTH, WIDTH),
        "wide": nn.Linear(WIDTH, WIDE),
        "back": nn.Linear(WIDE, WIDTH, bias=False),
    }
    narrow = {"down": nn.Linear(WIDTH, 4, bias=False), "up": nn.Linear(4, WIDTH)}
    fixed = {name: layer if name in trained else frozen(layer) for name, layer in layers.items()}
    return Wrapped(run, **narrow, **fixed, last=nn.Linear(WIDTH, 2))


def losses(outputs, targets):
    return (outputs - targets).square().sum(1)


def batch_of(count, rows=ROWS):
    draw = torch.Generator().manual_seed(5)
    return torch.randn(count, rows, WIDTH, generator=draw), torch.randn(count, 2, generator=draw)


def query_of(objective, points, *, scale=1.0):
    """A gradient, or DP-SRM's two parts; with a large scale nothing is clipped."""
    theta_P = objective.layout.read(objective.module)
    other_P = theta_P + 0.02 * torch.randn(theta_P.shape, generator=torch.Generator().manual_seed(7))
    if points == 1:
        return Query(points=(theta_P,), parts=(Part(coefficients=(1.0,), clip=0.5 * scale),))
    parts = (
        Part(coefficients=(1.0, -1.0), clip=0.2 * scale),
        Part(coefficients=(1.0, 0.0), clip=0.5 * scale, weight=0.3),
    )
    return Query(points=(theta_P, other_P), parts=parts)


def oracle(module, query, batch):
    exact = Objective.of(copy.deepcopy(module).double(), losses)
    points = tuple(point_P.double() for point_P in query.points)
    return LoopEngine(exact)(Query(points=points, parts=query.parts), tuple(t.double() for t in batch)).secret


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 1, ROWS), (3, 1, 2, ROWS // 2), (3, ROWS), (1, 1, ROWS)])
def test_a_product_and_its_gradient(seen, shape, bias):
    """Forward and input gradient of every example, against float64; what comes out may be written into.

    It lies in memory as a product does, also of a single example, where torch could take it for channels first.
    """
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, WIDTH, generator=draw).requires_grad_()
    layer = frozen(nn.Linear(WIDTH, WIDE, bias=bias))
    weight_of = torch.randn(*shape, WIDE, generator=draw)

    def run(one):
        out = pixels.multiply(one, layer.weight)
        return out.add_(layer.bias) if bias else out.mul_(1)

    y = vmap(run)(x)
    (gradient,) = torch.autograd.grad((y * weight_of).sum(), x)
    x64, exact = x.detach().double().requires_grad_(), copy.deepcopy(layer).double()
    y64 = exact(x64)
    (gradient64,) = torch.autograd.grad((y64 * weight_of).sum(), x64)
    assert seen == [(WIDE, WIDTH)]
    assert y.is_contiguous()
    assert relative_error(y.detach(), y64.detach()) <= 1e-6
    assert relative_error(gradient, gradient64) <= 1e-6


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("trained", [(), ("first", "wide", "back")])
@pytest.mark.parametrize(("scale", "tolerance"), [(1e4, 3e-5), (1, 4e-3)])
def test_clipped_sums_are_the_oracles(seen, trained, points, steady, scale, tolerance):
    """Of frozen and of trained layers; every large product is a convolution, and no other is.

    Where the clip acts, the engine takes up to 0.3 % off (docs/decisions/rounding.md).
    """
    module, batch = made(trained=trained), batch_of(4)
    objective = Objective.of(module, losses)
    query = query_of(objective, points, scale=scale)
    engine = GhostEngine(objective, steady=steady, notice=pytest.fail)
    engine(query, batch)
    seen.clear()
    found = engine(query, batch).secret
    assert seen == [(WIDTH, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE)] * points
    assert relative_error(found, oracle(module, query, batch)) <= tolerance


@pytest.mark.parametrize("trained", [(), ("first", "wide", "back")])
def test_replacing_a_record_moves_its_row_only(seen, trained):
    """Bit for bit: losses, recorded inputs and gradients of all other examples."""
    objective = Objective.of(made(trained=trained), losses)
    (theta_P,) = query_of(objective, 1).points
    x, y = batch_of(4)
    other = x.clone()
    other[2] = 1e3 * torch.randn(other[2].shape, generator=torch.Generator().manual_seed(9))
    before, after = (record(objective, theta_P, (inputs, y), shown=frozenset()).tensors for inputs in (x, other))
    assert seen
    assert len(before) == len(after) > 5
    rest = [0, 1, 3]
    for ours, theirs in zip(before, after, strict=True):
        assert torch.equal(ours[rest], theirs[rest])
    assert not torch.equal(before[0][2], after[0][2])


def test_an_input_that_is_written_into_later(seen):
    """A convolution keeps its input for the way back, a product does not: such modules are recorded with products."""
    module, batch = made(written, trained=["first"]), batch_of(3)
    frozen(module.down), frozen(module.up)
    objective = Objective.of(module, losses)
    query = query_of(objective, 2, scale=1e4)
    engine = GhostEngine(objective, notice=pytest.fail)
    found = engine(query, batch).secret
    assert relative_error(found, oracle(module, query, batch)) <= 1e-4
    seen.clear()
    assert torch.equal(engine(query, batch).secret, found)
    assert not seen


@contextmanager
def convolutions_in(precision):
    conv = torch.backends.mkldnn.conv
    before = conv.fp32_precision
    conv.fp32_precision = precision
    try:
        yield
    finally:
        conv.fp32_precision = before


@contextmanager
def onednn_off():
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


X, W = torch.randn(2, ROWS, WIDTH), torch.randn(WIDE, WIDTH)
FALL_BACK = {
    "few rows": (X[:, 1:], W, nullcontext),
    "a narrow layer": (X, W[: WIDTH - 1], nullcontext),
    "narrow inputs": (X[..., 1:].contiguous(), W[:, 1:].contiguous(), nullcontext),
    "many outputs": (X, torch.randn(pixels.MOST_UNEQUAL * WIDTH + 1, WIDTH), nullcontext),
    "float64": (X.double(), W.double(), nullcontext),
    "bfloat16": (X.bfloat16(), W.bfloat16(), nullcontext),
    "a transposed weight": (X, torch.randn(WIDTH, WIDE).t(), nullcontext),
    "an expanded weight": (X, torch.randn(1, WIDTH).expand(WIDE, -1), nullcontext),
    "an expanded input": (torch.randn(2, 1, WIDTH).expand(-1, ROWS, -1), W, nullcontext),
    "one output": (X, W[0], nullcontext),
    "autocast": (X, W, autocast),
    "convolutions in bfloat16": (X, W, lambda: convolutions_in("bf16")),
    "oneDNN switched off": (X, W, onednn_off),
}


@pytest.mark.parametrize("case", FALL_BACK)
def test_whatever_is_unusual_is_a_product(seen, case):
    """The same numbers as `F.linear`'s, bit for bit."""
    x, weight, around = FALL_BACK[case]
    with around():
        found, expected = (vmap(lambda one, f=f: f(one, weight))(x) for f in (pixels.multiply, F.linear))
    assert not seen
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_what_the_table_of_exceptions_excepts_from(seen):
    vmap(lambda one: pixels.multiply(one, W))(X)
    assert seen == [(WIDE, WIDTH)]


def test_a_subclass_is_left_alone(seen):
    class Marked(torch.Tensor):
        pass

    pixels.multiply(X[0], W.as_subclass(Marked))
    assert not seen


def test_weights_that_depend_on_the_example_are_products(seen):
    """Only what the module holds is known to be the same for all."""
    module = Wrapped(
        lambda m, x: m.last(F.linear(m.first(x), m.mixed(x).squeeze(0)).mean(1)),
        first=frozen(nn.Linear(WIDTH, WIDTH)),
        mixed=frozen(nn.Linear(WIDTH, WIDTH, bias=False)),
        last=nn.Linear(WIDTH, 2),
    )
    batch = batch_of(3, rows=WIDTH)
    objective = Objective.of(module, losses)
    query = query_of(objective, 1, scale=1e4)
    found = GhostEngine(objective, notice=pytest.fail)(query, batch).secret
    assert seen == [(WIDTH, WIDTH)] * 4, "of two layers, in the first look and in the pass"
    assert relative_error(found, oracle(module, query, batch)) <= 1e-4


@pytest.mark.parametrize("setting", ["medium", "high", "highest"])
def test_the_precision_of_products_is_not_that_of_convolutions(seen, setting):
    """What a loop chooses for products may shorten them, but no convolution."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        found = vmap(lambda one: pixels.multiply(one, W))(X)
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen
    assert relative_error(found, F.linear(X.double(), W.double())) <= 1e-6


def test_the_choice_is_by_the_processor(monkeypatch):
    monkeypatch.undo()
    pixels._slow_products.cache_clear()
    for vendor, expected in (("AuthenticAMD", True), ("GenuineIntel", False), ("", False)):
        with monkeypatch.context() as patch:
            patch.setattr(pixels.Path, "read_text", lambda *_, vendor=vendor, **__: f"vendor_id\t: {vendor}\n")
            assert pixels._slow_products() is (expected and pixels._MKL.is_available())
            pixels._slow_products.cache_clear()
