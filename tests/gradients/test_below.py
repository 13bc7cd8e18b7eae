"""Code that torch would run below vmap, on the tensors of all examples, is refused; what sees one example may run."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import dpsrm
from dpsrm.core.errors import IsolationError
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.gradients.below import foreign_rules, nothing_below, refuse_subclasses

ENGINES = [GhostEngine, FunctionalEngine]


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
    before = TorchDispatchMode.__enter__, saved_tensors_hooks.__enter__
    with nothing_below():
        with nothing_below():
            pass
        with pytest.raises(IsolationError):
            Rounding().__enter__()
        with pytest.raises(IsolationError):
            saved_tensors_hooks(four_bits, four_bits).__enter__()
    with pytest.raises(ValueError, match="inside"), nothing_below():
        raise ValueError("inside")
    assert (TorchDispatchMode.__enter__, saved_tensors_hooks.__enter__) == before


class Coarse(torch.Tensor):
    """A weight that could round what it is multiplied with, by one scale."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with no_dispatch():
            return func(*args, **(kwargs or {})).as_subclass(cls)


@pytest.mark.parametrize("how", ["parameter", "buffer", "attribute"])
def test_tensors_that_dispatch_by_themselves_are_refused(how, tmp_path):
    net, weight = Net(), torch.randn(4, 3).as_subclass(Coarse)
    if how == "parameter":
        net.a.weight = nn.Parameter(weight, requires_grad=False)
    elif how == "buffer":
        net.a.register_buffer("scales", weight)
    else:
        net.a.scales = weight
    words = r"a\.(weight|scales) is a tensor with a __torch_dispatch__"
    with pytest.raises(IsolationError, match=words):
        refuse_subclasses(net)
    if how != "attribute":
        return  # torch itself does not show their numbers
    settings = dpsrm.Settings(
        privacy=dpsrm.Privacy(epsilon=1.0, delta=1e-5), training=dpsrm.Training(batch=10, steps=1), seed=1
    )
    with pytest.raises(IsolationError, match=words):
        dpsrm.train(net, loss, batch(), settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


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


def test_an_operator_with_a_batching_rule_of_its_own_is_refused(tmp_path):
    """In a process of its own: such an operator stays known to torch."""
    done = subprocess.run([sys.executable, "-c", OWN_RULE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "sees all examples of a batch" in done.stderr
    assert "attack::centre" in done.stderr
    assert not (tmp_path / "run").exists()


def test_torch_and_this_package_bring_no_foreign_rules():
    """Otherwise nothing could be trained; flex_attention has a rule in a namespace of its own."""
    import torch.nn.attention.flex_attention  # noqa: F401

    assert [rule for rule in foreign_rules() if "test" not in rule] == []
