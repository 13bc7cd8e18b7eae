"""Code that torch would run below vmap, on the tensors of all examples, is refused; what sees one example may run."""

import gc
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._functorch.autograd_function import custom_function_call
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import dpsrm
from dpsrm.core.errors import IsolationError
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.gradients.below import foreign_rules, nothing_below, refuse_subclasses
from dpsrm.gradients.features import freeze_features

ENGINES = [GhostEngine, FunctionalEngine]
SETTINGS = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=10, steps=1), seed=1
)


def loss(outputs, targets):
    return (outputs.squeeze(1) - targets).square()


class Net(nn.Module):
    """A layer, something in the middle, a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c = nn.Linear(3, 4), nn.Linear(4, 1)

    def middle(self, h):
        return h * h

    def forward(self, x):
        return self.c(self.middle(self.a(x)))


def four_bits(tensor):
    """One scale for the whole tensor, so that a large example takes the bits of the others."""
    scale = tensor.abs().max() / 7
    return (tensor / scale).round(), scale


class Packed(Net):
    def forward(self, x):
        with saved_tensors_hooks(four_bits, lambda packed: packed[0] * packed[1]):
            return super().forward(x)


class Offloaded(Net):
    def forward(self, x):
        with save_on_cpu():
            return super().forward(x)


class Rounding(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "mul" not in str(func):
            return out
        rounded, scale = four_bits(out)
        return rounded * scale


class Dispatched(Net):
    def middle(self, h):
        with Rounding():
            return h * h


class Square(torch.autograd.Function):
    """Its backward pass runs below vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h):
        return h * h

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        with Rounding():
            return 2 * g * ctx.saved_tensors[0]


class OnTheWayBack(Net):
    def middle(self, h):
        return Square.apply(h)


def query(objective, clip=0.1):
    return Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=clip),))


def batch():
    draw = torch.Generator().manual_seed(1)
    return torch.randn(40, 3, generator=draw), torch.randn(40, generator=draw)


def moved(engine, kind):
    """How far replacing one record moves the clipped sum, whose sensitivity is 0.2."""
    objective, (x, y) = Objective.of(kind(), loss), batch()
    other = torch.cat([torch.full((1, 3), 1e3), x[1:]])
    sums = [engine(objective)(query(objective), (inputs, y)).secret for inputs in (x, other)]
    return float((sums[0] - sums[1]).norm())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Packed, "saved tensor hooks"),
        (Offloaded, "saved tensor hooks"),
        (Dispatched, "leave Rounding out"),
        (OnTheWayBack, "leave Rounding out"),
    ],
)
def test_what_would_see_all_examples_is_refused(engine, kind, words):
    with pytest.raises(IsolationError, match=words):
        moved(engine, kind)
    assert moved(LoopEngine, kind) <= 0.2, "the loop gives it one example"


@pytest.mark.parametrize("kind", [Packed, Dispatched])
def test_losses_are_computed_with_nothing_below(kind):
    """Choices among step sizes are made of them; no engine is between."""
    objective = Objective.of(kind(), loss)
    with pytest.raises(IsolationError, match="all examples of a batch"):
        objective.losses(objective.theta(), batch())


@pytest.mark.parametrize("around", [save_on_cpu, Rounding])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_loop_around_has_entered_is_refused(engine, around):
    with around(), pytest.raises(IsolationError, match="all examples of a batch"):
        moved(engine, Net)


class Doubled(TorchFunctionMode):
    """Sees one example, whose largest number it uses."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 2 * out / out.abs().amax() if func is torch.tanh else out


class Functions(Net):
    def middle(self, h):
        with Doubled():
            return torch.tanh(h)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_mode_sees_one_example(engine):
    objective = Objective.of(Functions(), loss)
    got, wanted = (kind(objective)(query(objective, clip=1e9), batch()).secret for kind in (engine, LoopEngine))
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5
    assert moved(engine, Functions) <= 0.2


@pytest.mark.parametrize("engine", ENGINES)
def test_modes_of_torch_may_count(engine):
    with FlopCounterMode(display=False) as counter:
        assert moved(engine, Net) <= 0.2
    assert counter.get_total_flops() > 0


def test_torch_is_as_before_after_the_last_pass():
    kinds = TorchDispatchMode, saved_tensors_hooks, OpOverload, OpOverloadPacket, type(custom_function_call), Coarse
    before = [dict(vars(kind)) for kind in kinds]
    with nothing_below():
        with nothing_below():
            pass
        with pytest.raises(IsolationError):
            Rounding().__enter__()
        with pytest.raises(IsolationError):
            saved_tensors_hooks(four_bits, four_bits).__enter__()
    with pytest.raises(ValueError, match="inside"), nothing_below():
        raise ValueError("inside")
    assert [dict(vars(kind)) for kind in kinds] == before
    assert gc.isenabled()


class Coarse(torch.Tensor):
    """A tensor that rounds what it is multiplied with, by one scale."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with no_dispatch():
            out = func(*args, **(kwargs or {}))
            if "mul" not in str(func):
                return out.as_subclass(cls)
            rounded, scale = four_bits(out)
            return rounded * scale


ROUNDING = vars(Coarse)["__torch_dispatch__"]
SCALES = torch.ones(4).as_subclass(Coarse)


class Global(Net):
    def middle(self, h):
        return h * SCALES


class Wrapper(torch.Tensor):
    """As above, without numbers of its own, as quantised weights are."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        rounded, scale = four_bits(func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {})))
        return rounded * scale


class MadeInForward(Net):
    def forward(self, x):
        return super().forward(x * Wrapper(torch.ones(3)))


class DefinedInForward(Net):
    def forward(self, x):
        class Local(torch.Tensor):
            __torch_dispatch__ = ROUNDING

        y = x * torch.ones(3).as_subclass(Local)
        del Local
        for _ in range(3000):  # as much as makes Python look for what nobody holds
            made = []
            made.append(made)
        return super().forward(y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Global, MadeInForward, DefinedInForward])
def test_tensors_that_dispatch_by_themselves_are_refused_where_they_are_used(engine, kind):
    with pytest.raises(IsolationError, match="is a tensor with a __torch_dispatch__ of its own"):
        moved(engine, kind)
    gc.collect()  # the kind that a forward pass defined


@pytest.mark.parametrize("how", ["parameter", "buffer", "attribute"])
def test_tensors_that_dispatch_by_themselves_are_refused(how, tmp_path):
    net = Net()
    if how == "parameter":
        net.a.register_parameter("scales", nn.Parameter(SCALES, requires_grad=False))
    elif how == "buffer":
        net.a.register_buffer("scales", SCALES)
    else:
        net.a.scales = SCALES
    words = r"a\.scales is a tensor with a __torch_dispatch__"
    with pytest.raises(IsolationError, match=words):
        refuse_subclasses(net)
    if how != "attribute":
        return  # torch itself does not show their numbers
    with pytest.raises(IsolationError, match=words):
        dpsrm.train(net, loss, batch(), SETTINGS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def centring():
    """A function whose rule takes the mean of all examples off each."""

    class Centre(torch.autograd.Function):
        @staticmethod
        def forward(h):
            return h.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g

        @staticmethod
        def vmap(info, in_dims, h):
            return h - h.mean(in_dims[0], keepdim=True), in_dims[0]

    return Centre


centre = centring().apply


class Ruled(Net):
    def middle(self, h):
        return centre(h)


class RuledLater(Net):
    """As libraries do that load their kernels when they are first used."""

    def middle(self, h):
        return centring().apply(h)


class Inherited(Net):
    def middle(self, h):
        class Heir(centring()):
            pass

        return Heir.apply(h)


@pytest.mark.parametrize("kind", [Ruled, RuledLater, Inherited])
def test_a_function_with_a_batching_rule_of_its_own_is_refused_where_it_is_used(kind, tmp_path):
    for engine in ENGINES:
        with pytest.raises(IsolationError, match="a vmap rule of its own"):
            moved(engine, kind)
    with pytest.raises(IsolationError, match="a vmap rule of its own"):
        dpsrm.train(kind(), loss, batch(), SETTINGS, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    trunk, x = kind().requires_grad_(False), batch()[0]
    features, others = freeze_features(trunk, x), freeze_features(trunk, torch.cat([x[:1] + 5, x[1:]]))
    assert torch.equal(features[1:], others[1:]), "a trunk is run on one record after the other"
    dpsrm.train(Net(), loss, batch(), SETTINGS, out=tmp_path / "run")  # who does not use it may train


OWN_RULE = """
import torch, dpsrm
from dpsrm.gradients.below import foreign_rules
from torch import nn

@torch.library.custom_op("attack::centre", mutates_args=())
def centre(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

centre.register_autograd(lambda ctx, g: g)
assert foreign_rules() == []  # without a rule, torch calls it for one example after the other
torch.library.register_vmap("attack::centre", lambda info, dims, x: (x - x.mean(0), 0))

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(3, 2)
    def forward(self, x): return self.w(centre(x))

loss = lambda out, y: (out - y[:, None]).square().mean(1)
settings = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=10, steps=1), seed=1
)
dpsrm.train(Module(), loss, (torch.randn(40, 3), torch.randn(40)), settings, out="run")
"""


LATE_RULE = """
import torch, dpsrm
from torch import nn

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.op = nn.Linear(3, 2), None
    def forward(self, x):
        if not hasattr(torch.ops.attack, "centre"):
            words = {"mutates_args": (), "schema": "(Tensor x) -> Tensor"}
            made = torch.library.custom_op("attack::centre", lambda x: x.clone(), **words)
            made.register_autograd(lambda ctx, g: g)
            made.register_vmap(lambda info, dims, x: (x - x.mean(0), 0))
        return self.w(torch.ops.attack.centre(x))

loss = lambda out, y: (out - y[:, None]).square().mean(1)
settings = dpsrm.Settings(
    privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=10, steps=1), seed=1
)
dpsrm.train(Module(), loss, (torch.randn(40, 3), torch.randn(40)), settings, out="run")
"""


def refused(code, folder):
    """In a process of its own: such an operator stays known to torch."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    return not (folder / "run").exists() and "sees all examples" in done.stderr and "attack::centre" in done.stderr


@pytest.mark.parametrize("code", [OWN_RULE, LATE_RULE], ids=["before", "late"])
def test_an_operator_with_a_batching_rule_of_its_own_is_refused(tmp_path, code):
    assert refused(code, tmp_path)


def test_an_operator_that_python_does_not_call_is_refused(tmp_path):
    """C++ might: that passes no guard."""
    assert refused(OWN_RULE.replace("self.w(centre(x))", "self.w(x)"), tmp_path)


def test_torch_and_this_package_bring_no_foreign_rules():
    """Otherwise nothing could be trained; flex_attention has a rule in a namespace of its own."""
    import torch.nn.attention.flex_attention  # noqa: F401

    assert [rule for rule in foreign_rules() if "test" not in rule] == []
