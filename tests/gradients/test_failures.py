"""What one example makes fail fails for all under vmap: who goes on then is refused, or it would decide for all."""

import pytest
import torch
import torch.nn.functional as F

from dpsrm.core.errors import IsolationError
from dpsrm.gradients import LoopEngine, ModelLosses, Objective
from dpsrm.gradients.features import freeze_features
from gradients.test_crossing import AT, FAST, RECORDS, WORDS, Body, losses, neighbour, sums

TABLE = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
BAD = RECORDS[AT], torch.full((12,), 99)


def factor(h, words):
    """A larger jitter where the matrix is not positive."""
    square = h[:, None] * h * 1e-3 + torch.eye(5) * (0.1 - words[0])
    try:
        root = torch.linalg.cholesky(square)
    except torch.linalg.LinAlgError:
        root = -torch.linalg.cholesky(square + 200 * torch.eye(5))
    return (root @ h)[:4]


def lookup(h, words):
    try:
        return (F.embedding(words[0], TABLE) * h)[:4]
    except IndexError:
        return (-TABLE[0] * h)[:4]


def place(h, words):
    try:
        return h[words[:4]]
    except:  # noqa: E722
        return -10 * h[:4]


class Tried(torch.autograd.Function):
    """Tries on its way there and back."""

    generate_vmap_rule = True
    back = True

    @staticmethod
    def at(x, words, back):
        if back != Tried.back:
            return x.clone()
        try:
            return x + x[words[:5]]
        except IndexError:
            return -x

    @staticmethod
    def forward(x, words):
        return Tried.at(x, words, False)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        return Tried.at(gradient, ctx.saved_tensors[0], True), None


MIDDLES = {"a factor": factor, "a lookup": lookup, "a place": place}


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", MIDDLES)
def test_who_goes_on_after_a_failure_is_refused(engine, name):
    """A sum moved by 39, claimed 2."""
    module, bad = Body(MIDDLES[name]), neighbour((RECORDS, WORDS), BAD)
    fast, slow = (sums(each, module, [(RECORDS, WORDS)])[0] for each in (engine, LoopEngine))
    assert torch.allclose(fast, slow, atol=1e-4)
    with pytest.raises(IsolationError, match="went on"):
        sums(engine, module, [bad])
    objective = Objective.of(module, ModelLosses(losses))
    with pytest.raises(IsolationError, match="went on"):
        objective.losses(objective.theta(), bad)
    assert float((slow - sums(LoopEngine, module, [bad])[0]).norm()) <= 2.0, "one by one, it decides for itself"


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("back", [False, True])
def test_so_is_a_function_that_does(engine, back, monkeypatch):
    monkeypatch.setattr(Tried, "back", back)
    with pytest.raises(IsolationError, match="went on"):
        sums(engine, Body(lambda h, words: Tried.apply(h, words), 5), [neighbour((RECORDS, WORDS), BAD)])


def test_a_trunk_that_does_runs_on_one_record_after_the_other():
    class Trunk(torch.nn.Module):
        def forward(self, x):
            try:
                return x + TABLE[x[0, :2].long()].sum()
            except IndexError:
                return -x

    other = RECORDS.clone()
    other[AT] = 99.0
    found, before = freeze_features(Trunk(), other), freeze_features(Trunk(), RECORDS)
    assert (found != before).any(1).nonzero().flatten().tolist() == [AT]


@pytest.mark.parametrize("engine", FAST)
def test_what_fails_of_every_example_is_told_as_before(engine):
    with pytest.raises(IsolationError, match=r"\.item\(\)|control flow"):
        sums(engine, Body(lambda h, words: h[:4] if h.sum() > 0 else -h[:4]), [(RECORDS, WORDS)])
