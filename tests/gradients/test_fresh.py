"""What reached other examples past vmap: unwritten memory, ways back, overridden functions, numbers in words."""

import warnings

import pytest
import torch
from torch.overrides import handle_torch_function, has_torch_function, wrap_torch_function

from dpsrm.core.errors import IsolationError
from dpsrm.gradients import LoopEngine, ModelLosses, Objective, Way
from dpsrm.gradients.features import freeze_features
from dpsrm.gradients.fresh import FRESH, Fresh
from dpsrm.gradients.passes import each_alone
from gradients.test_crossing import AT, FAST, RECORDS, WORDS, Body, N, gradients, neighbour, sums

RECORD = torch.full((4,), 100.0), torch.full((12,), -1)


def read(unwritten):
    """One row of memory that nobody wrote."""
    return unwritten[AT, :4].nan_to_num().clamp(-9, 9)


UNWRITTEN = {
    "empty": lambda h: torch.empty(N, 5),
    "empty, channels last": lambda h: torch.empty(1, N, 5, 1, memory_format=torch.channels_last)[0, :, :, 0],
    "empty_like": lambda h: torch.empty_like(h.expand(N, 5)),
    "empty_strided": lambda h: torch.empty_strided((N, 5), (5, 1)),
    "empty_permuted": lambda h: torch.empty_permuted((N, 5), (0, 1)),
    "new_empty": lambda h: h.new_empty(N, 5),
    "new_empty_strided": lambda h: h.new_empty_strided((N, 5), (5, 1)),
    "new": lambda h: h.new(N, 5),
    "new, of a size": lambda h: h.new(torch.Size([N, 5])),
}


def filled_before(values=7.0):
    """Leave numbers in the memory that is handed out next."""
    kept = [torch.full((N, 5), values) for _ in range(50)]
    del kept


@pytest.mark.parametrize("engine", [*FAST, LoopEngine])
@pytest.mark.parametrize("name", UNWRITTEN)
def test_memory_that_nobody_wrote_holds_nothing_of_others(engine, name):
    def middle(h, words):
        filled_before()
        return h[:4] + read(UNWRITTEN[name](h))

    batch = (RECORDS[:5], WORDS[:5])
    found = sums(engine, Body(middle), [batch])[0]
    assert torch.allclose(found, sums(engine, Body(lambda h, words: h[:4] + 0.0), [batch])[0], atol=1e-6)


def test_whole_batches_and_trunks_get_zeros_too():
    class Trunk(torch.nn.Module):
        def forward(self, x):
            filled_before()
            unwritten = float(torch.empty(N, 5).sum())
            return x if bool((x > 9).any()) else x + unwritten  # a branch: one record after the other

    assert torch.equal(freeze_features(Trunk(), RECORDS), RECORDS)
    body = torch.nn.Linear(4, 1)
    loss = ModelLosses(lambda model, batch: model(batch[0]).squeeze(1) + torch.empty(N, 5).sum())
    checked = Objective.of(body, loss, way=Way.BATCH)
    filled_before()
    found = checked.losses(checked.theta(), (RECORDS,))
    assert torch.allclose(found, body(RECORDS).detach().squeeze(1))


def test_zeros_stand_where_torch_gives_anything():
    like = torch.ones(2, dtype=torch.float64)
    with Fresh():
        assert torch.equal(like.new([3.0]), torch.tensor([3.0], dtype=torch.float64)), "numbers stay"
        assert like.new().shape == (0,)
        assert torch.empty(2, 3, dtype=torch.int8, requires_grad=False).dtype is torch.int8
        assert torch.empty((1, 2, 3, 3), memory_format=torch.channels_last).stride() == (18, 1, 6, 2)
    assert FRESH[torch.empty_like] is torch.zeros_like


class Back(torch.autograd.Function):
    """Its way back does what a test wants."""

    generate_vmap_rule = True
    way = staticmethod(lambda g: g)

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        filled_before()
        return Back.way(gradient)


@pytest.mark.parametrize("engine", FAST)
def test_ways_back_are_seen(engine, monkeypatch):
    """torch runs them outside of all function modes (a sum moved by 19, claimed 2)."""
    body, batch = Body(lambda h, words: Back.apply(h), 5), (RECORDS[:5], WORDS[:5])
    plain = sums(engine, body, [batch])[0]
    monkeypatch.setattr(Back, "way", lambda g: g + torch.empty(N, 5)[AT].nan_to_num().clamp(-9, 9))
    assert torch.allclose(sums(engine, body, [batch])[0], plain, atol=1e-6)
    monkeypatch.setattr(Back, "way", lambda g: g.as_strided((5,), (1,)))
    with pytest.raises(IsolationError, match="as_strided"):
        sums(engine, body, [batch])


@pytest.mark.parametrize("engine", [*FAST, LoopEngine])
def test_functions_that_torch_may_override_are_seen_inside(engine):
    """Where nobody saw what they call, a sum moved by 31, claimed 2; those that torch did not wrap are refused."""

    @wrap_torch_function(lambda h, words: (h,))
    def hidden(h, words):
        filled_before()
        return h[:4] + read(torch.empty(N, 5))

    def asking(h, words):
        return handle_torch_function(asking, (h,), h, words) if has_torch_function((h,)) else h[:4]

    batch = (RECORDS[:5], WORDS[:5])
    found = sums(engine, Body(hidden), [batch])[0]
    assert torch.allclose(found, sums(engine, Body(lambda h, words: h[:4] + 0.0), [batch])[0], atol=1e-6)
    if engine is not LoopEngine:
        with pytest.raises(IsolationError, match="overrides"):
            sums(engine, Body(asking), [(RECORDS, WORDS)])


REFUSED = {
    "resize_": lambda h, _: h.detach().clone().resize_(4) + h[:4],
    "resize_as_": lambda h, _: h.detach().clone().resize_as_(torch.zeros(4)) + h[:4],
    "segment_reduce": lambda h, _: torch.segment_reduce(h, "sum", offsets=torch.tensor([0, 5]))[:1].expand(4),
    "quantised": lambda h, _: torch.quantize_per_tensor_dynamic(h, torch.qint8, False).dequantize()[:4],
    "lstsq": lambda h, _: torch.linalg.lstsq(h.view(5, 1), h.view(5, 1)).solution.view(1).expand(4),
    "torch.ops.aten.resize_": lambda h, _: torch.ops.aten.resize_(h.detach().clone(), [4]) + h[:4],
    "torch.ops.prims.as_strided": lambda h, _: torch.ops.prims.as_strided(h, [4], [1], 0),
    "torch.ops.aten.new_empty": lambda h, _: torch.ops.aten.new_empty(h, [4]) + h[:4],
}


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("call", REFUSED)
def test_what_walks_through_memory_is_refused(engine, call):
    with pytest.raises(IsolationError, match=r"resize_|segment_reduce|quantised|lstsq|as_strided|new_empty"):
        sums(engine, Body(REFUSED[call]), [(RECORDS, WORDS)])


SAME = {
    "roll": (lambda h, _: h.sum().roll(1).expand(4), 4),
    "torch.roll": (lambda h, _: torch.roll(h.sum(), 1).expand(4), 4),
    "rows are rolled": (lambda h, _: h.roll(1)[:4], 4),
    "index_fill_": (lambda h, words: h.clone().index_fill_(0, words, 0.0), 5),
    "select_scatter": (lambda h, _: h.select_scatter(h.sum(), -1, 2), 5),
    "select_scatter of rows": (lambda h, _: torch.select_scatter(h.view(1, 5), h[:1], 1, 2).view(5), 5),
    "addbmm_": (lambda h, _: torch.zeros(5, 5).add(h[0]).addbmm_(h.expand(2, 5, 5), torch.ones(2, 5, 5))[0], 5),
}


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", SAME)
def test_what_is_run_otherwise_gives_what_it_gives_alone(engine, name):
    middle, width = SAME[name]
    batch = neighbour((RECORDS, torch.ones_like(WORDS)), RECORD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast, slow = (sums(each, Body(middle, width), [batch])[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)


@pytest.mark.parametrize("name", ["roll", "index_fill_"])
def test_no_derivative_reaches_another_example(name):
    words, middle = torch.ones_like(WORDS), SAME[name][0]
    record = words.clone()
    record[AT] = -1
    changed = (gradients(middle, record) != gradients(middle, words)).any(1)
    assert changed.nonzero().flatten().tolist() in ([], [AT])


def test_words_about_a_tensor_hold_no_numbers():
    def told(x):
        return torch.tensor([len(repr(x)), len(f"{x}"), len(str(x))])

    x, y = torch.ones(3, 4), torch.full((3, 4), 1234.5)
    assert torch.equal(each_alone(told, x), each_alone(told, y))
    kept = []
    each_alone(lambda one: kept.append(repr(torch.ones(2))) or one, x)
    assert kept == ["tensor([1., 1.])"], "of what is no example's, they do"
    assert repr(torch.ones(1)) == "tensor([1.])"
