"""torch's own batching rules and derivatives: where they let one example reach another, they are not used."""

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import DpsrmError, IsolationError
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, ModelLosses, Objective, Part, Query, Way
from dpsrm.gradients.back import gradients_at
from dpsrm.gradients.batch import as_batch
from dpsrm.gradients.below import guarded
from dpsrm.gradients.crossing import distances, index_fill, table_first, table_of_example
from dpsrm.gradients.features import freeze_features
from dpsrm.gradients.passes import each_alone

FAST = [GhostEngine, FunctionalEngine]
N, AT = 40, 17
RECORDS = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
WORDS = torch.zeros(N, 12, dtype=torch.long)


class Body(nn.Module):
    """A layer, what the test puts in the middle, a layer."""

    def __init__(self, middle, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.middle = nn.Linear(4, 5), nn.Linear(width, 1), middle

    def forward(self, batch):
        x, words = batch
        return self.c(self.middle(self.a(x[0]), words[0]).tanh()).reshape(1, -1)[:, :1]


def losses(model, batch):
    return (model(batch).squeeze(1) - 3).square()


def sums(engine, module, batches, loss=losses):
    """The clipped sums of some batches, each from the same random numbers; clip 1."""
    way = Way.LOOP if engine is LoopEngine else Way.VMAP
    objective = Objective.of(module, ModelLosses(loss), way=way)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=1.0),))
    found = []
    for batch in batches:
        torch.manual_seed(0)
        found.append(engine(objective)(query, batch).secret)
    return found


def neighbour(batch, record):
    """The batch with another record at AT."""
    changed = tuple(part.clone() for part in batch)
    for part, value in zip(changed, record, strict=True):
        part[AT] = value
    return changed


def moved(engine, module, batch, record, loss=losses):
    """How far one record moves the sum; what is refused does not."""
    try:
        one, other = sums(engine, module, [batch, neighbour(batch, record)], loss)
    except (DpsrmError, IndexError):
        return 0.0
    return float((one - other).norm())


def lookup(h, words):
    return F.embedding(words, h.view(5, 1).expand(5, 4) * 1.0)


def lookup_directly(h, words):
    return torch.embedding(h.view(5, 1).expand(5, 4) * 1.0, words)


def filled(h, words):
    return h.index_fill(0, words, 0.0)[:4]


def gradients(middle, words):
    """Of every example's own numbers, by vmap over grad; and what came out, without it."""
    h = torch.randn(N, 5, generator=torch.Generator().manual_seed(1))

    def one(example):
        own, which = example[0][0], example[1][0]
        return torch.cat(
            [torch.func.grad(lambda h: middle(h, which).square().sum())(own), middle(own, which).flatten()]
        )

    return each_alone(lambda example: one(as_batch(example)), (h, words))


@pytest.mark.parametrize("middle", [lookup, lookup_directly, filled])
@pytest.mark.parametrize("first", [5, -1, -6])
def test_no_index_reaches_another_examples_tensor(middle, first):
    """Places of a record's neighbours: 5, 10, … lie in the tensors of those after it, negative ones of those before."""
    words = torch.ones_like(WORDS)
    record = words.clone()
    record[AT] = first + (5 if first > 0 else -5) * torch.arange(12)
    try:
        changed = (gradients(middle, record) != gradients(middle, words)).any(1)
    except IndexError:
        return
    assert changed.nonzero().flatten().tolist() in ([], [AT])


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(("middle", "word"), [(lookup, 4), (lookup_directly, 4), (filled, -1)])
def test_indices_of_ones_own_are_right(engine, middle, word):
    record = torch.full((4,), 100.0), torch.full((12,), word)
    batch = neighbour((RECORDS, WORDS), record)
    fast, slow = (sums(each, Body(middle), [batch])[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)


def test_a_table_that_an_example_makes_is_looked_up_as_torch_does():
    table, words = torch.randn(3, 6, 2), torch.tensor([[0, 5], [2, 1], [3, 3]])
    ours = torch.func.vmap(lambda w, i: table_of_example(i, w, padding_idx=-1))(table, words)
    assert torch.equal(ours, torch.stack([F.embedding(i, w) for w, i in zip(table, words, strict=True)]))
    assert torch.equal(torch.func.vmap(table_first)(table, words), ours)
    assert table_of_example(words[0], table[0]) is NotImplemented, "one table for all is torch's"

    def gradient(function):
        return torch.func.vmap(torch.func.grad(lambda w, i: function(i, w, padding_idx=3).sum()))(table, words)

    each = [torch.func.grad(lambda w, i=i: F.embedding(i, w, padding_idx=3).sum())(w) for w, i in zip(table, words)]  # noqa: B905
    assert torch.equal(gradient(table_of_example), torch.stack(each))


@pytest.mark.parametrize("engine", FAST)
def test_a_number_that_fills_places_named_twice_has_its_gradient_once(engine):
    """`index_put` would count it for every name of a place: a sum was wrong by .6 of itself."""

    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.value = nn.Linear(4, 1), nn.Parameter(torch.tensor(0.5))

        def forward(self, batch):
            x, words = batch
            return self.layer(x.index_fill(1, words[0], self.value) + x.clone().index_fill_(1, words[0], self.value))

    batch = RECORDS, torch.tensor([1, 3, 1]).expand(N, 3)
    fast, slow = (sums(each, Filled(), [batch])[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)


class Prototypes(nn.Module):
    """Every example weighs the distances between learned points; `inside` runs a vmap of the module's own."""

    def __init__(self, inside=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.points, self.inside = nn.Linear(4, 1), nn.Parameter(torch.randn(2, 3, 4)), inside

    def forward(self, batch):
        def apart(points):
            return torch.cdist(points, points, 1.0).square().sum()

        each = torch.func.vmap(apart)(self.points) if self.inside else torch.stack(list(map(apart, self.points)))
        return self.layer(batch[0]) * each.sum().sqrt()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("engine", FAST)
def test_distances_between_parameters_have_each_examples_gradient(engine, inside):
    """torch gave all examples the first one's: one record moved a sum by 34 clips, claimed 2."""
    batch = RECORDS.clone(), WORDS
    fast, slow = (sums(each, Prototypes(inside), [batch])[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)
    first = tuple(part.clone() for part in batch)
    first[0][0] = -20.0
    one, other = sums(engine, Prototypes(inside), [batch, first])
    assert (one - other).norm() <= 2.0


def test_distances_are_torchs():
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    for p in (0.5, 1.0, 2.0, 3.0, float("inf")):
        (ours,) = each_alone(lambda _, p=p: distances(x, y, p), torch.zeros(1))
        assert torch.allclose(ours, torch.cdist(x, y, p))
    assert distances(x, y) is NotImplemented, "outside of vmap"
    with pytest.raises(IsolationError, match="_cdist_forward"):
        each_alone(lambda _: torch.ops.aten._cdist_forward(x, x, 1.0, None), torch.zeros(1))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("value", [7, torch.tensor(7.0)])
def test_index_fill_is_torchs(dim, value):
    x, index = torch.randn(4, 5), torch.tensor([1, -2])
    assert torch.equal(index_fill(x, dim, index, value), torch.index_fill(x, dim, index, value))


def script(function):
    """torch has deprecated scripts; they still run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


@script
def scripted(x):
    return x * 2


SCRIPTED = script(nn.Tanh())

CALLS = {
    "as_strided": lambda h, _: h.as_strided((4,), (1,)),
    "torch.as_strided": lambda h, _: torch.as_strided(h, (4,), (1,)),
    "torch.ops": lambda h, _: torch.ops.aten.as_strided(h, (4,), (1,)),
    "an overload": lambda h, _: torch.ops.aten.as_strided.default(h, (4,), (1,)),
    "poisson by torch.ops": lambda h, _: torch.ops.aten.poisson(h.detach().abs())[:4],
    "a script": lambda h, _: scripted(h)[:4],
    "a scripted module": lambda h, _: SCRIPTED(h)[:4],
}


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("call", CALLS)
def test_what_nobody_can_follow_is_refused(engine, call):
    with pytest.raises(IsolationError, match=r"as_strided|poisson|scripted"):
        sums(engine, Body(CALLS[call]), [(RECORDS, WORDS)])
    assert scripted(torch.ones(1)) == 2, "only inside of a pass"


def test_features_are_made_of_each_record_alone():
    """The walk of as_strided led through the examples, which vmap may put last in memory."""

    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("p", torch.randn(6, 4))

        def forward(self, x):
            return (self.p @ x[0]).as_strided((4, 3), (1, 1)).mean(1)[None]

    trunk, other = Trunk(), RECORDS.clone()
    other[AT] = 10.0
    changed = (freeze_features(trunk, RECORDS) != freeze_features(trunk, other)).any(1)
    assert changed.nonzero().flatten().tolist() == [AT]


class Product(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.b, self.call = nn.Parameter(torch.zeros(2)), call

    def forward(self, x):
        return self.call(x + self.b)


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(
    "call", [lambda x: x.prod(1), lambda x: torch.stack([row.prod() for row in x]), lambda x: torch.prod(x, 1)]
)
def test_a_zero_of_one_example_changes_no_others_derivative(engine, call):
    """torch asks whether any factor of the whole tensor is zero; where products overflow, its two answers differ."""
    batch = (torch.tensor([1e30, 1e9]).repeat(N, 1),)
    found = moved(engine, Product(call), batch, (torch.tensor([0.0, 1.0]),), lambda model, batch: model(batch[0]))
    assert found <= 2.0


class Written(torch.autograd.Function):
    """Writes into the gradient that comes back, where its own input is large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient.masked_fill_(ctx.saved_tensors[0].abs() > 10, 0.0)


class Constant(torch.autograd.Function):
    """Has a gradient that is the same for all examples."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(ctx.shape)


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(
    "loss",
    [
        lambda model, batch: Written.apply(model(batch[0]).sum(1)),
        lambda model, batch: Written.apply(model(batch[0])).sum(1),
        lambda model, batch: Constant.apply(Written.apply(model(batch[0]))).reshape(1),
    ],
)
def test_who_writes_into_a_gradient_writes_into_that_of_one_example(engine, loss):
    module, batch = nn.Linear(4, 8), (RECORDS,)
    record = (torch.full((4,), -1000.0),)
    assert moved(engine, module, batch, record, loss) <= 2.0
    if "Constant" in loss.__code__.co_names and engine is FunctionalEngine:
        with pytest.raises(IsolationError, match="out-of-place"):
            sums(engine, module, [batch], loss)
        return
    fast, slow = (sums(each, module, [batch], loss)[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
def test_a_write_into_memory_of_several_examples_is_refused():
    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum(0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.expand(3, 2).masked_fill_(torch.tensor([[True], [False], [False]]), 0.0)

    x = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(IsolationError, match="share"):
        gradients_at(Spread.apply(x), [x])


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.parametrize("write", ["masked_fill_", "data"])
def test_what_is_made_of_a_parameter_is_not_written_into(write):
    """All examples' copies lie in the same memory."""

    class Pruned(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.layer = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 1)

        def forward(self, x):
            w = self.w.to(x)
            if torch.is_grad_enabled():
                with torch.no_grad():
                    (w if write == "masked_fill_" else w.data).masked_fill_(x > 5, 0.0)
            return self.layer(x * w)

    record = (torch.full((4,), 10.0),)
    assert moved(GhostEngine, Pruned(), (RECORDS,), record, lambda m, b: m(b[0]).squeeze(1).square()) <= 2.0


class Drawing(nn.Module):
    """Draws from a global generator where the record says so."""

    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.draw = nn.Linear(4, 4), nn.Linear(4, 1), draw

    def forward(self, x):
        if float(x[0, 0]) > 0:
            x = x * (1.0 if self.draw() < 0.5 else -1.0)
        return self.c(self.a(x).tanh())


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_one_by_one_no_example_shifts_what_others_draw(draw):
    loss = lambda model, batch: (model(batch[0]).squeeze(1) - 3).square()  # noqa: E731
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    batch, other = (RECORDS.clone(),), (RECORDS.clone(),)
    batch[0][0, 0], other[0][0, 0] = 1.0, -1.0
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    one, two = sums(LoopEngine, Drawing(draw), [batch, other], loss)
    assert float((one - two).norm()) <= 2.0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before, "left as they were"  # noqa: NPY002
    alone = [sums(LoopEngine, Drawing(draw), [(part[0][1:],)], loss)[0] for part in (batch, other)]
    assert torch.equal(*alone)
    one, again = sums(LoopEngine, Drawing(draw), [batch, batch], loss)
    assert torch.equal(one, again)


def test_guards_go_up_and_down():
    from torch._functorch import autograd_function

    before = autograd_function.reductify_leaf, torch._C.ScriptFunction.__call__
    with guarded():
        assert autograd_function.reductify_leaf is not before[0]
    assert autograd_function.reductify_leaf is before[0]
    assert scripted(torch.ones(1)) == 2
