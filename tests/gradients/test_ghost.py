"""The ghost engine leaves the module as it was, refuses what it must, and survives extreme records."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from dpsrm.core.errors import BoundExceeded, InputError
from dpsrm.gradients import ClipRule, Excess, GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.gradients.features import freeze_features, split_frozen
from dpsrm.gradients.ghost.assemble import blocks
from dpsrm.gradients.ghost.blocks import LookupBlock, RowsBlock
from dpsrm.gradients.ghost.lengths import measure_parts
from dpsrm.gradients.ghost.mixture import Mixture, combination
from dpsrm.gradients.ghost.products import OuterBlock
from dpsrm.gradients.ghost.recording import record
from dpsrm.gradients.ghost.rules import RULES, rule
from dpsrm.gradients.ghost.terms import Outer, Rows
from dpsrm.gradients.ghost.tied import TiedBlock
from dpsrm.gradients.ghost.windows import Windows
from gradients.ghost_cases import Wrapped, losses, oracle, problem, query_of, relative_error, twin


def objective_of(*layers):
    return Objective.of(nn.Sequential(*layers), losses)


def state(module):
    """Everything a user could see of a module."""
    hooks = [
        (name, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training, sorted(vars(m)))
        for name, m in module.named_modules()
    ]
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    facts = {n: (id(t), t.requires_grad, t.grad, t._version, t.tolist()) for n, t in tensors.items()}
    return hooks, facts


@pytest.mark.parametrize("name", ["encoder", "prelu", "instance-norm", "tied", "lstm", "frozen-trunk"])
@pytest.mark.parametrize("training", [True, False])
def test_leaves_the_module_as_it_was(name, training):
    objective, _, inputs, targets = problem(name, 3)
    objective.module.train(training)
    before, copied = state(objective.module), copy.deepcopy((inputs, targets))
    GhostEngine(objective, notice=lambda _: None)(query_of(objective, "near"), (inputs, targets))
    assert state(objective.module) == before
    assert all(torch.equal(a, b) for a, b in zip((inputs, targets), copied, strict=True))
    assert not torch.overrides._get_current_function_mode_stack()


def _many(run, query):
    for _ in range(20):
        run(query, (torch.randn(3, 4), torch.randn(3)))


@pytest.mark.parametrize("at", range(0, 20, 3))
def test_leaves_the_module_as_it_was_after_an_exception(at):
    calls = [0]

    def fail(m, x):
        calls[0] += 1
        if calls[0] > at:
            raise ArithmeticError("broken on purpose")
        return m.w(torch.tanh(m.p(x)))

    module = Wrapped(fail, w=nn.Linear(4, 3), p=nn.PReLU(4))
    objective = Objective.of(module, losses)
    before = state(module)
    run = GhostEngine(objective, notice=lambda _: None)
    with pytest.raises(InputError, match="on purpose"):
        _many(run, query_of(objective, "near"))
    assert state(module) == before
    assert not torch.overrides._get_current_function_mode_stack()


def test_dropout_is_no_mixing():
    objective = objective_of(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    assert GhostEngine(objective)(query_of(objective, "one"), (torch.randn(5, 4), torch.randn(5))).rows == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_refuses_short_floats(dtype):
    objective = Objective.of(nn.Linear(3, 2).to(dtype), losses)
    with pytest.raises(InputError, match="float32 or float64"):
        GhostEngine(objective)


def test_refuses_embeddings_that_change_themselves_or_look_at_the_batch():
    for option in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        objective = objective_of(nn.Embedding(5, 3, **option))
        query = query_of(objective, "one")
        before = query.points[0].clone()
        with pytest.raises(InputError):
            GhostEngine(objective)(query, (torch.tensor([[1, 2], [3, 1]]), torch.randn(2)))
        assert torch.equal(query.points[0], before)


def test_refuses_a_module_that_changes_its_input():
    objective = objective_of(nn.ReLU(inplace=True), nn.Linear(4, 2))
    inputs = torch.randn(3, 4)
    before = inputs.clone()
    with pytest.raises(InputError, match="in place"):
        GhostEngine(objective)(query_of(objective, "one"), (inputs, torch.randn(3)))
    assert torch.equal(inputs, before)


@pytest.mark.parametrize("order", ["examples first", "positions first"])
def test_a_last_layer_that_starts_at_zero_hides_nothing(order):
    """Positions in front of examples in one dimension, behind a layer that lets no gradient through."""

    def run(m, x):
        first = x if order == "examples first" else x.transpose(0, 1)
        y = torch.tanh(m.a(first.reshape(-1, 4))).view(*first.shape[:2], 3)
        return m.b((y if order == "examples first" else y.transpose(0, 1)).flatten(1))

    module = Wrapped(run, a=nn.Linear(4, 3), b=nn.Linear(15, 2))
    nn.init.zeros_(module.b.weight)
    objective, inputs, targets = Objective.of(module, losses), torch.randn(4, 5, 4), torch.randn(4)
    engine = GhostEngine(objective, notice=lambda _: None)
    engine(query_of(objective, "one"), (inputs, targets))
    query = replace(query_of(objective, "one", C1=1e-2), points=(torch.randn(objective.layout.size),))
    slow = LoopEngine(objective)(query, (inputs, targets))
    assert relative_error(engine(query, (inputs, targets)).secret, slow.secret) <= 1e-5


@pytest.mark.parametrize("name", ["linear-leading", "conv2d", "conv2d-gram", "embedding", "encoder", "tied", "prelu"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_record_that_is_not_finite_contributes_nothing(name, poison):
    objective, exact, inputs, targets = problem(name, 5)
    if inputs.is_floating_point():
        inputs[1] = poison
    targets[3] = poison
    query = query_of(objective, "far", C1=0.1)
    bad = 2 if inputs.is_floating_point() else 1
    keep = [0, 2, 4] if bad == 2 else [0, 1, 2, 4]
    found = GhostEngine(objective, notice=lambda _: None)(query, (inputs, targets))
    assert relative_error(found.secret, oracle(exact, query, (inputs[keep], targets[keep])).secret) <= 1e-5
    assert found.diagnostics.nonfinite == bad
    assert found.rows == 5


def test_theory_mode_stops_instead_of_clipping():
    objective, _, inputs, targets = problem("linear", 5)
    loose, tight = (replace(query_of(objective, "one", C1=C1), excess=Excess.RAISE) for C1 in (1e3, 1e-3))
    assert GhostEngine(objective)(loose, (inputs, targets)).rows == 5
    with pytest.raises(BoundExceeded):
        GhostEngine(objective)(tight, (inputs, targets))


@pytest.mark.parametrize("coefficients", [(0.3, 0.7), (1.5, -0.5), (-0.5, 1.5), (0.0, 1.0), (-2.0, 0.0)])
@pytest.mark.parametrize("name", ["conv2d", "encoder", "embedding"])
def test_any_combination_of_two_points(name, coefficients):
    objective, exact, inputs, targets = problem(name, 5)
    parts = tuple(Part(coefficients=c, clip=0.1, rule=r) for c in (coefficients, (1.0, -1.0)) for r in ClipRule)
    query = Query(points=query_of(objective, "far").points, parts=parts)
    fast, slow = GhostEngine(objective)(query, (inputs, targets)), oracle(exact, query, (inputs, targets))
    assert relative_error(fast.secret, slow.secret) <= 1e-5


def test_three_points():
    objective, exact, inputs, targets = problem("encoder", 4)
    here, there = query_of(objective, "far").points
    parts = (Part(coefficients=(1.0, -2.0, 1.0), clip=0.1), Part(coefficients=(0.0, 0.5, 0.5), clip=0.1))
    query = Query(points=(here, there, (here + there) / 2), parts=parts)
    fast, slow = GhostEngine(objective)(query, (inputs, targets)), oracle(exact, query, (inputs, targets))
    assert relative_error(fast.secret, slow.secret) <= 1e-5


@pytest.mark.parametrize("coefficients", [(1.0, -1.0), (2.0, -0.5, -1.5), (-1.0, 3.0, 0.5, -1.0), (0.0, 0.0)])
def test_atoms_make_up_the_part(coefficients):
    total = [0.0] * len(coefficients)
    for (j, k), c in combination(coefficients).items():
        total[j] += c
        total[k] -= c if j != k else 0.0
    assert total == pytest.approx(coefficients)


def forms(name):
    """Which kind of block each parameter of a case has."""
    objective, _, inputs, targets = problem(name, 7)
    query = query_of(objective, "near")
    recordings = [record(objective, point_P, (inputs, targets)) for point_P in query.points]
    return {key: type(b) for key, b in blocks(recordings, Mixture.of(query), objective.layout).items()}


def test_the_cheaper_form_is_chosen_by_the_shapes():
    assert forms("linear")["0.weight"] is OuterBlock
    assert forms("linear-wide")["0.weight"] is OuterBlock
    assert forms("linear-long")["0.weight"] is RowsBlock
    assert forms("conv2d")["0.weight"] is RowsBlock
    assert forms("conv2d-gram")["2.weight"] is OuterBlock
    assert forms("embedding")["0.weight"] is LookupBlock
    assert forms("tied")["words.weight"] is TiedBlock
    assert set(forms("frozen-trunk")) == {"2.weight", "2.bias"}


def test_little_is_kept_between_passes_and_sum():
    objective, _, inputs, targets = problem("linear-wide", 7)
    query, recordings = query_of(objective, "near"), []
    for point_P in query.points:
        first = recordings[0] if recordings else None
        recordings.append(record(objective, point_P, (inputs, targets), first=first))
    assert not any(recording.derived.parameters for recording in recordings)
    assert not any(call.arguments for recording in recordings for call in recording.calls)
    assert all(recording.calls[0].x is recordings[0].calls[0].x for recording in recordings)
    losses_B, mixture = recordings[0].losses_B, Mixture.of(query)
    found = blocks(recordings, mixture, objective.layout)
    assert recordings == []
    measure_parts(mixture, list(found.values()), losses_B)
    assert found["0.weight"]._made is None


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_rows_by_torchs_convolutions(dims, stride, groups):
    """The same rows as from windows, for every geometry, also where the other way would be chosen."""
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    for kernel, dilation, padding in [(1, 1, 0), (2, 2, 1), (3, 1, 1), (3, 2, 0)]:
        x = torch.randn(3, 4, *[7] * dims, dtype=torch.float64)
        weight = torch.randn(4, 4 // groups, *[kernel] * dims, dtype=torch.float64, requires_grad=True)
        y = convolve(x, weight, None, stride, padding, dilation, groups)
        g = torch.randn_like(y)
        each = [convolve(one[None], weight, None, stride, padding, dilation, groups) for one in x]
        exact = [torch.autograd.grad(y, weight, g[i : i + 1])[0].flatten() for i, y in enumerate(each)]
        shape = [(n,) * dims for n in (kernel, stride, dilation)]
        windows = Windows(x, g, shape[0], shape[1], ((padding, padding),) * dims, shape[2], groups)
        assert torch.allclose(windows.by_convolution(), torch.stack(exact))


def test_which_convolutions_are_torchs_own():
    def convolved(channels, side, groups=1):
        x = torch.empty(2, channels, side, side)
        return Windows(x, x, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), groups).convolved

    assert convolved(16, 16)
    assert convolved(5, 2, groups=5)
    assert not any((convolved(15, 16), convolved(16, 15), convolved(4, 9, groups=2), convolved(5, 1, groups=5)))


def test_long_inner_products_are_added_in_pieces(monkeypatch):
    """As the doubt about a norm assumes: no more than 1024 products in one float32 sum."""
    widths, plain = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda x, y: widths.append(x.shape[2]) or plain(x, y))
    torch.manual_seed(0)
    a, g = torch.randn(3, 4, 20), torch.randn(3, 4, 2500)
    measure = OuterBlock([Outer(a, g)], [(0, 0)]).measure({(0, 0): 1.0})
    assert sorted(widths) == [20, 452, 1024, 1024]
    exact = plain(g.double().transpose(1, 2), a.double()).square().sum((1, 2))
    assert bool(((measure.square_B - exact).abs() <= measure.doubt_B).all())
    assert bool((measure.doubt_B <= 1e-3 * exact).all())


def test_tied_words_that_repeat_and_are_padding():
    """Looked-up rows and outer products of one weight overlap in the words of the example, however often."""
    module = Wrapped(
        lambda m, x: m.out(torch.tanh(m.words(x))), words=nn.Embedding(40, 6, padding_idx=3), out=nn.Linear(6, 40)
    )
    module.out.weight = module.words.weight
    objective, exact = Objective.of(module, losses), twin(module)
    inputs, targets = torch.tensor([[1, 1, 3], [3, 3, 3], [5, 7, 5]]), torch.randn(3)
    for kind in ("one", "far"):
        query = query_of(objective, kind, C1=1e-2)
        found = GhostEngine(objective)(query, (inputs, targets))
        assert relative_error(found.secret, oracle(exact, query, (inputs, targets)).secret) <= 1e-5


def test_norms_by_gram_matrices_that_cancel_are_taken_again():
    """Positions whose gradients nearly cancel: float32 Gram matrices alone would be off by far more than 1e-6."""
    torch.manual_seed(0)
    module = nn.Linear(60, 60, bias=False)
    weight = torch.tensor([1.0, -1.0]).view(1, 2, 1)

    def difference(out, targets):
        return (torch.tanh(out) * weight).flatten(1).sum(1) * targets

    objective, exact = (Objective.of(m, difference) for m in (module, copy.deepcopy(module).double()))
    base = torch.randn(6, 1, 60)
    inputs = torch.cat([base, base + 1e-3 * torch.randn(6, 1, 60)], dim=1)
    query = query_of(objective, "one", C1=1e-3)
    fast, slow = GhostEngine(objective)(query, (inputs, torch.ones(6))), oracle(exact, query, (inputs, torch.ones(6)))
    assert fast.diagnostics.clipped == slow.diagnostics.clipped == (1.0,)
    for i in range(6):
        one = GhostEngine(objective)(query, (inputs[i : i + 1], torch.ones(1))).secret
        assert query.bound * (1 - 1e-3) <= float(one.norm()) <= query.bound * (1 + 1e-6)


def test_paths_that_change_from_call_to_call_are_still_summed_right():
    """A module that takes another path than the one first seen leaks a gradient, and torch.func takes the batch."""
    flip = [False]

    def run(m, x):
        return m.b(m.a(x)) * (1 + m.b.bias.sum() if flip[0] else 1)

    objective = Objective.of(Wrapped(run, a=nn.Linear(4, 3), b=nn.Linear(3, 2)), losses)
    inputs, targets, query = torch.randn(4, 4), torch.randn(4), query_of(objective, "near", C1=1e9)
    engine = GhostEngine(objective)
    engine(query, (inputs, targets))
    flip[0] = True
    slow = LoopEngine(objective)(query, (inputs, targets))
    assert relative_error(engine(query, (inputs, targets)).secret, slow.secret) <= 1e-4


def test_a_batch_that_moves_to_another_dimension_is_noticed():
    flip = [False]

    def run(m, x):
        return m.a(x.transpose(0, 1)).transpose(0, 1) if flip[0] else m.a(x)

    objective = Objective.of(Wrapped(run, a=nn.Linear(4, 3)), losses)
    inputs, targets, query = torch.randn(4, 5, 4), torch.randn(4), query_of(objective, "one", C1=1e-2)
    engine = GhostEngine(objective)
    engine(query, (inputs, targets))
    flip[0] = True
    slow = LoopEngine(objective)(query, (inputs, targets))
    assert relative_error(engine(query, (inputs, targets)).secret, slow.secret) <= 1e-5


def test_frozen_features_give_the_same_head_gradients():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).requires_grad_(False)
    module = nn.Sequential(*body, nn.Linear(6, 3))
    inputs, targets = torch.randn(10, 4), torch.randn(10)
    trunk, head = split_frozen(module)
    features = freeze_features(trunk, inputs, batch=3)
    assert features.shape == (10, 6)
    whole, part = Objective.of(module, losses), Objective.of(head, losses)
    query = query_of(whole, "one", C1=0.1)
    assert torch.equal(part.layout.read(head), whole.layout.read(module))
    direct, cached = GhostEngine(whole)(query, (inputs, targets)), GhostEngine(part)(query, (features, targets))
    assert relative_error(cached.secret, direct.secret) <= 1e-6


def test_features_refuse_what_trains_or_mixes():
    with pytest.raises(InputError, match="frozen"):
        freeze_features(nn.Linear(2, 2), torch.ones(2, 2))
    norm = nn.BatchNorm1d(2).requires_grad_(False)
    with pytest.raises(InputError, match="mixes"):
        freeze_features(norm, torch.ones(2, 2))
    assert freeze_features(norm.eval(), torch.ones(2, 2)).shape == (2, 2)
    with pytest.raises(InputError, match="trainable"):
        split_frozen(nn.Sequential(nn.ReLU()))
    trunk, head = split_frozen(nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)))
    assert (len(trunk), len(head)) == (0, 2)


def test_the_twin_is_a_copy():
    objective, exact, _, _ = problem("linear", 1)
    assert exact.module is not objective.module
    assert twin(objective.module).layout.names == objective.layout.names


def test_a_function_of_the_users_is_not_run_on_all_examples_at_once():
    def mixing(x, weight):
        return (x - x.mean(0)) @ weight

    with pytest.raises(InputError, match="mixing"):
        rule(mixing, leading=True)


@pytest.mark.parametrize("wrong", ["too short", "too few", "unlike another use"])
def test_rows_that_do_not_fit_their_parameter_are_refused(wrong, monkeypatch):
    """They would be broadcast: what is added would be longer than what was measured."""

    def terms(g, x, weight, bias=None):
        rows = g.sum(1).sum(1, keepdim=True) if wrong != "too few" else g.sum((0, 1)).unsqueeze(0)
        return {"weight": Outer(x, g), "bias": Rows(lambda: rows)}

    monkeypatch.setitem(RULES, F.linear, replace(RULES[F.linear], terms=terms))
    used = (lambda m, x: m.layer(x) * m.layer.bias) if wrong == "unlike another use" else (lambda m, x: m.layer(x))
    objective = Objective.of(Wrapped(used, layer=nn.Linear(4, 3)), losses)
    with pytest.raises(InputError, match="one row, as long as the parameter"):
        GhostEngine(objective)(query_of(objective, "one"), (torch.randn(5, 4), torch.randn(5)))


def test_backward_hooks_of_modules_are_refused():
    """They run on the way back of a module, and nothing comes by there."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    hook = module[1].register_full_backward_hook(lambda m, inputs, outputs: tuple(0 * g for g in inputs))
    with pytest.raises(InputError, match="backward hooks"):
        GhostEngine(Objective.of(module, losses))
    hook.remove()
    pre = module[1].register_full_backward_pre_hook(lambda m, outputs: tuple(0 * g for g in outputs))
    with pytest.raises(InputError, match="backward hooks"):
        GhostEngine(Objective.of(module, losses))
    pre.remove()
    of_all = register_module_full_backward_hook(lambda m, inputs, outputs: None)
    with pytest.raises(InputError, match="backward hooks"):
        GhostEngine(Objective.of(module, losses))
    of_all.remove()
    GhostEngine(Objective.of(module, losses))


HOOKED = {
    "a tensor": lambda h: h.register_hook(lambda g: g / g.norm()),
    "its place in the graph": lambda h: h.grad_fn.register_hook(lambda g, _: tuple(t / t.norm() for t in g)),
}


@pytest.mark.parametrize("where", HOOKED)
def test_hooks_of_tensors_see_one_example(where):
    """`torch.func` runs them for each example; where the engine would pass them by, it steps aside."""

    def run(m, x):
        h = torch.tanh(m.first(x))
        HOOKED[where](h)
        return m.last(h)

    module, said = Wrapped(run, first=nn.Linear(4, 3), last=nn.Linear(3, 1)), []
    objective, batch = Objective.of(module, losses), (torch.randn(5, 4), torch.randn(5))
    query = query_of(objective, "one", C1=1e6)
    found = GhostEngine(objective, notice=said.append)(query, batch).secret
    assert len(said) == 1
    assert relative_error(found, LoopEngine(objective)(query, batch).secret) <= 1e-5


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize(("steps", "inputs", "outputs"), [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
def test_layers_may_be_empty(steps, inputs, outputs, points):
    """A sequence without a step, a layer without inputs or outputs: once a ZeroDivisionError."""

    class Empty(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.some, self.all = nn.Linear(inputs, outputs), nn.Linear(5 + outputs, 3)

        def forward(self, x):
            return self.all(torch.cat([x.mean(1), self.some(x[:, :steps, :inputs]).sum(1)], 1))

    objective = Objective.of(Empty(), nn.CrossEntropyLoss(reduction="none"))
    theta, batch = objective.theta(), (torch.randn(6, 3, 5), torch.arange(6) % 3)
    parts = (Part(coefficients=(1.0, -1.0)[:points], clip=0.3),)
    query = Query(points=(theta, theta + 0.1)[:points], parts=parts)
    found, slow = (each(objective)(query, batch).secret for each in (GhostEngine, LoopEngine))
    torch.testing.assert_close(found, slow, rtol=1e-4, atol=1e-6)
