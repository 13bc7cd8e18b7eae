"""Losses of (model, batch) over trees: equal to the float64 loop oracle, ragged batches included."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpsrm.core.errors import InputError, IsolationError
from dpsrm.core.tree import Ragged, mapped
from dpsrm.gradients import LoopEngine, ModelLosses, Objective, Part, Query, Way, as_losses, clipped_losses, engine
from dpsrm.gradients.batch import examples
from dpsrm.gradients.ghost.rounding import SHIFTING
from dpsrm.gradients.query import MARGIN


class Tagger(nn.Module):
    """Embeds tokens and averages those that are not padding; returns a dictionary as transformers do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids, mask):
        kept = mask.unsqueeze(-1).to(self.head.weight.dtype)
        mean = (self.embed(ids) * kept).sum(1) / kept.sum(1).clamp_min(1)
        return {"logits": self.head(mean)}


def losses(model, batch):
    logits = model(batch["ids"], mask=batch["mask"])["logits"]
    return F.cross_entropy(logits, batch["labels"], reduction="none")


def sentences(count, length, seed=0):
    stream = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 11, (count, length), generator=stream)
    mask = torch.rand(count, length, generator=stream) > 0.3
    return {"ids": ids, "mask": mask, "labels": torch.randint(3, (count,), generator=stream), "nothing": None}


def problem(function=losses):
    torch.manual_seed(0)
    model = Tagger()
    exact = Objective.of(copy.deepcopy(model).double(), ModelLosses(function), way=Way.LOOP)
    objective = Objective.of(model, ModelLosses(function))
    here_P = objective.layout.read(model)
    parts = (Part(coefficients=(1.0, -1.0), clip=0.05, weight=0.6), Part(coefficients=(1.0, 0.0), clip=0.3, weight=0.4))
    return objective, exact, Query(points=(here_P, here_P + 0.1), parts=parts)


def doubled(query):
    return Query(points=tuple(point.double() for point in query.points), parts=query.parts)


BATCHES = {
    "dictionary": sentences(5, 4),
    "none": sentences(0, 4),
    "ragged": Ragged((sentences(3, 4), sentences(2, 7, seed=1), sentences(1, 1, seed=2))),
}


@pytest.mark.parametrize("name", ["ghost", "functional"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_equals_the_loop_oracle(name, batch):
    objective, exact, query = problem()
    found = engine(name, objective)(query, batch)
    margin = SHIFTING if name == "ghost" and isinstance(batch, Ragged) else MARGIN
    expected = LoopEngine(exact, margin=margin)(doubled(query), batch)
    assert found.rows == examples(batch) == expected.rows
    assert torch.allclose(found.secret, expected.secret, rtol=1e-5, atol=1e-7)
    scores = [
        clipped_losses(o, q.points, batch, clip=2.0, offsets=[0.0, 1.0])
        for o, q in ((objective, query), (exact, doubled(query)))
    ]
    assert scores[0].secret == pytest.approx(scores[1].secret, rel=1e-5)


def test_dataclasses_are_batches_too():
    @dataclass
    class Pair:
        ids: torch.Tensor
        mask: torch.Tensor
        labels: torch.Tensor

    def of_pair(model, batch):
        assert isinstance(batch, Pair)
        return losses(model, vars(batch))

    objective, _, query = problem(of_pair)
    parts = {name: value for name, value in BATCHES["dictionary"].items() if value is not None}
    same = engine("ghost", problem()[0])(query, BATCHES["dictionary"])
    assert torch.equal(engine("ghost", objective)(query, Pair(**parts)).secret, same.secret)


def test_a_record_of_another_length_moves_the_sum_by_no_more_than_the_sensitivity():
    objective, _, query = problem()
    run = engine("ghost", objective)
    before = run(query, Ragged((sentences(3, 4), sentences(2, 7, seed=1))))
    fewer, more, one = mapped(lambda x: x[1:], sentences(3, 4)), sentences(2, 7, seed=1), sentences(1, 7, seed=5)
    longer = {name: torch.cat([more[name], one[name]]) for name in more if more[name] is not None}
    after = run(query, Ragged((fewer, longer)))
    assert float((after.secret - before.secret).norm()) <= 2 * before.bound


def test_losses_must_run_the_model_they_are_given():
    model = Tagger()
    other = Objective.of(model, ModelLosses(lambda _, batch: losses(model, batch)))
    query = Query(points=(other.layout.read(model),), parts=(Part(coefficients=(1.0,), clip=1.0),))
    for name in ("ghost", "functional"):
        with pytest.raises(IsolationError, match="given"):
            engine(name, other)(query, BATCHES["dictionary"])


def test_what_is_no_batch_is_named():
    objective, _, query = problem()
    with pytest.raises(InputError, match="row per example"):
        engine("ghost", objective)(query, {**BATCHES["dictionary"], "labels": torch.zeros(4)})
    with pytest.raises(InputError, match="tree of tensors"):
        engine("ghost", objective)(query, {"ids": [1, 2]})


def test_a_first_parameter_called_model_tells_losses_from_a_loss():
    assert isinstance(as_losses(losses), ModelLosses)
    assert as_losses(F.cross_entropy) is F.cross_entropy
    marked = ModelLosses(lambda net, batch: net(batch))
    assert as_losses(marked) is marked


def test_frozen_parameters_may_be_short():
    """Only what is trained must be float32: the frozen base of an adapter may be bfloat16."""
    objective, _, query = problem()
    base = nn.Linear(6, 6, bias=False).requires_grad_(False).to(torch.bfloat16)

    class Adapted(Tagger):
        def forward(self, ids, mask):
            found = super().forward(ids, mask)
            return {"logits": found["logits"] + self.base(torch.ones(1, 6, dtype=torch.bfloat16)).float()[:, :3]}

    model = Adapted()
    model.load_state_dict(objective.module.state_dict())
    model.base = base
    adapted = Objective.of(model, ModelLosses(losses))
    found = engine(
        "ghost",
        adapted,
    )(query, BATCHES["dictionary"])
    loop = engine("loop", Objective.of(model, ModelLosses(losses), way=Way.LOOP))(query, BATCHES["dictionary"])
    assert torch.allclose(found.secret, loop.secret, rtol=1e-4, atol=1e-6)
