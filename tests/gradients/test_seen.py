"""What torch runs with all function modes off is seen all the same, or refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.cond import cond_op
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function, wrap_torch_function

from dpsrm.core.errors import IsolationError
from dpsrm.gradients import GhostEngine, LoopEngine, ModelLosses, Objective, Part, Query, Way
from dpsrm.gradients.fresh import Fresh
from dpsrm.gradients.ghost.rules import RULES
from dpsrm.gradients.seen_functions import fresh_back
from gradients.test_crossing import AT, FAST, RECORDS, WORDS, Body, N, sums
from gradients.test_fresh import filled_before, read

BATCH = RECORDS[:5], WORDS[:5]


class Parts(torch.autograd.Function):
    """The identity, of which one part also does what a test wants."""

    generate_vmap_rule = True
    part, does = "", staticmethod(lambda x: x)

    @staticmethod
    def at(part, x):
        return Parts.does(x) if part == Parts.part else x

    @staticmethod
    def forward(x):
        return Parts.at("forward", x.clone())

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(Parts.at("setup_context", torch.zeros_like(output)))

    @staticmethod
    def backward(ctx, gradient):
        return Parts.at("backward", gradient.clone() + ctx.saved_tensors[0])

    @staticmethod
    def jvp(ctx, tangent):
        return Parts.at("jvp", tangent.clone())


def by_parts(h, words):
    filled_before()
    return sum(torch.func.jvp(Parts.apply, (h,), (torch.ones_like(h),))) if Parts.part == "jvp" else Parts.apply(h)


def unwritten(x):
    filled_before()
    return x + torch.empty(N, 5)[AT].nan_to_num().clamp(-9, 9)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("part", ["forward", "setup_context", "backward", "jvp"])
def test_every_part_of_a_function_is_seen(engine, part, monkeypatch):
    """A sum moved by 58, claimed 2, by unwritten memory in a forward."""
    monkeypatch.setattr(Parts, "part", part)
    plain = sums(engine, Body(by_parts, 5), [BATCH])[0]
    monkeypatch.setattr(Parts, "does", unwritten)
    assert torch.allclose(sums(engine, Body(by_parts, 5), [BATCH])[0], plain, atol=1e-6)
    for crossing in (lambda x: x.as_strided((5,), (1,)), lambda x: x + torch.poisson(x.detach().abs())):
        monkeypatch.setattr(Parts, "does", crossing)
        with pytest.raises(IsolationError, match=r"as_strided|Poisson"):
            sums(engine, Body(by_parts, 5), [BATCH])


def test_where_an_example_runs_alone_its_way_back_gets_zeros(monkeypatch):
    monkeypatch.setattr(Parts, "part", "backward")
    plain = sums(LoopEngine, Body(by_parts, 5), [BATCH])[0]
    monkeypatch.setattr(Parts, "does", unwritten)
    assert torch.allclose(sums(LoopEngine, Body(by_parts, 5), [BATCH])[0], plain, atol=1e-6)


def test_where_all_examples_run_at_once_too(monkeypatch):
    class Rows(torch.nn.Linear):
        def forward(self, x):
            return Parts.apply(super().forward(x)).square().sum(1, keepdim=True)

    def asked():
        loss = ModelLosses(lambda model, batch: model(batch[0]).squeeze(1))
        objective = Objective.of(module, loss, way=Way.BATCH)
        query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=1.0),))
        return GhostEngine(objective)(query, (RECORDS[:5],)).secret

    module = Rows(4, 5)
    monkeypatch.setattr(Parts, "part", "backward")
    plain = asked()
    monkeypatch.setattr(Parts, "does", unwritten)
    assert torch.allclose(asked(), plain, atol=1e-6)


def test_a_door_is_closed_behind():
    before = torch.autograd.function.BackwardCFunction.apply
    with fresh_back(), fresh_back():
        assert torch.autograd.function.BackwardCFunction.apply is not before
    assert torch.autograd.function.BackwardCFunction.apply is before


def far(x, y):
    return (x - y).abs().sum(-1) + torch.poisson((x - y).detach().abs()).sum(-1)


class Overriding(torch.Tensor):
    """Does as it likes where a product is asked for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            first, second = (torch.Tensor.as_subclass(x, torch.Tensor) for x in args)
            return first * second + read(torch.empty(N, 5)).sum()
        return super().__torch_function__(func, types, args, kwargs or {})


def unseen(h, words):
    with torch._C.DisableTorchFunction():
        return torch.poisson(h.detach().abs())[:4] + h[:4]


def like_torchs(h, words=None):
    """Of a package that is named like torch."""
    if has_torch_function((h,)):
        return handle_torch_function(like_torchs, (h,), h)
    return torch.poisson(h.detach().abs())[:4] + h[:4]


like_torchs.__module__ = "torch_layers.noise"

HIDDEN = {
    "a distance": lambda h, _: h[:4] * F.triplet_margin_with_distance_loss(h, 2 * h, h + 1, distance_function=far),
    "a subclass": lambda h, _: h.as_subclass(Overriding).mul(h.as_subclass(Overriding))[:4],
    "modes off": unseen,
    "named like torch": like_torchs,
    "a function of functions": lambda h, _: cond_op(h.sum() > 0, torch.poisson, torch.poisson, (h.abs(),))[:4],
}


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", HIDDEN)
def test_what_would_run_unseen_is_refused(engine, name):
    """With modes off, Poisson variables moved a sum by 2.2, claimed 2; of a forward, by 2.1."""
    with pytest.raises(IsolationError, match=r"Poisson|seen by nobody|nobody sees"):
        sums(engine, Body(HIDDEN[name]), [(RECORDS, WORDS)])


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_distance_of_ones_own_gives_what_it_gives(swap, reduction):
    x, y, z = torch.randn(3, 6, 4).unbind()
    given = {"margin": 2.0, "swap": swap, "reduction": reduction}
    for distance in (None, lambda x, y: (x - y).abs().sum(-1)):
        expected = F.triplet_margin_with_distance_loss(x, y, z, distance_function=distance, **given)
        with Fresh():
            found = F.triplet_margin_with_distance_loss(x, y, z, distance_function=distance, **given)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("engine", FAST)
def test_compiled_functions_run_as_they_are(engine):
    """Compiled, they would take the package's own guards with them."""
    compiled = torch.compile(lambda h: h[:4].tanh(), backend="eager")
    found = sums(engine, Body(lambda h, words: compiled(h)), [BATCH])[0]
    assert torch.allclose(found, sums(engine, Body(lambda h, words: h[:4].tanh()), [BATCH])[0])


SIZES = {
    "new, on a device": lambda h: h.new(N, 5, device="cpu"),
    "new, by name": lambda h: h.new(size=(N, 5)),
    "new, by NumPy's numbers": lambda h: h.new(np.int64(N), np.int64(5)),
}


@pytest.mark.parametrize("engine", [*FAST, LoopEngine])
@pytest.mark.parametrize("name", SIZES)
def test_however_memory_is_asked_for_it_is_zeros(engine, name):
    """A sum moved by 37, claimed 2."""

    def middle(h, words):
        filled_before()
        return h[:4] + read(SIZES[name](h))

    found = sums(engine, Body(middle), [BATCH])[0]
    assert torch.allclose(found, sums(engine, Body(lambda h, words: h[:4] + 0.0), [BATCH])[0], atol=1e-6)


def test_where_memory_grows_it_grows_by_zeros():
    filled_before()
    with Fresh():
        grown, like = torch.ones(2).resize_(N, 5), torch.ones(2).resize_as_(torch.zeros(N, 5))
        shorter = torch.arange(6.0).resize_(2, 2)
    assert torch.equal(grown, like)
    assert grown.sum() == 2
    assert torch.equal(shorter, torch.tensor([[0.0, 1.0], [2.0, 3.0]])), "what is there stays"
    batch = RECORDS[:5], WORDS[:5]
    found = sums(LoopEngine, Body(lambda h, _: h[:4] + read(torch.zeros(0).resize_(N, 5))), [batch])[0]
    assert torch.allclose(found, sums(LoopEngine, Body(lambda h, _: h[:4] + 0.0), [batch])[0])


class Noisy(TorchFunctionMode):
    """Adds noise wherever a product is asked for."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found + torch.poisson(found.detach().abs()) if func is torch.Tensor.mul else found


@pytest.mark.parametrize("engine", FAST)
def test_a_mode_that_was_entered_before_is_refused(engine):
    """A sum moved by 11, claimed 2. One that is entered in forward, is seen."""
    with Noisy(), pytest.raises(IsolationError, match="entered before a pass"):
        sums(engine, Body(lambda h, words: h.mul(1.0)[:4]), [(RECORDS, WORDS)])

    def inside(h, words):
        with Noisy():
            return h.mul(1.0)[:4]

    with pytest.raises(IsolationError, match="Poisson"):
        sums(engine, Body(inside), [(RECORDS, WORDS)])


@wrap_torch_function(lambda x, weight: (x, weight))
def ruled(x, weight):
    """A layer of the user's with a rule."""
    return F.linear(x, weight) + torch.poisson(x.detach().abs()).sum()


def test_a_layer_with_a_rule_is_seen_inside(monkeypatch):
    monkeypatch.setitem(RULES, ruled, replace(RULES[F.linear], leading=False))

    class Ruled(torch.nn.Linear):
        def forward(self, batch):
            return ruled(batch[0], self.weight)

    with pytest.raises(IsolationError, match="Poisson"):
        sums(GhostEngine, Ruled(4, 1, bias=False), [(RECORDS, WORDS)])
