"""An input that is the same at all points is kept once; that no example's numbers decide which inputs are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import IsolationError
from dpsrm.gradients import GhostEngine, ModelLosses, Objective, Part, Query
from dpsrm.gradients.ghost.terms import same
from dpsrm.gradients.ghost.windows import window_rows

N, AT = 50, 17


class Signs(nn.Module):
    """Its second layer is given signs, which near points mostly have in common."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1), nn.Linear(2048, 1)

    def forward(self, x):
        return self.c(self.b(self.a(x).sign().detach()).tanh().flatten(1))


def asked(module, distance):
    objective = Objective.of(module, ModelLosses(lambda model, batch: model(batch[0]).squeeze(1)))
    here_P = objective.theta()
    step_P = torch.randn(len(here_P), generator=torch.Generator().manual_seed(3))
    part = Part(coefficients=(0.5, 0.5), clip=1.0)
    return objective, Query(points=(here_P, here_P + distance * step_P / step_P.norm()), parts=(part,))


def signs(objective, point_P, x):
    values = objective.layout.split(point_P)
    return F.conv2d(x[None], values["a.weight"], values["a.bias"], padding=1).sign()


def test_no_record_decides_for_others_what_is_kept_once(monkeypatch):
    """By which products the rows of all others are computed changed with one record's signs, and rows by 2·10⁻⁷."""
    objective, query = asked(Signs(), 1e-5)
    draw, common, other = torch.Generator().manual_seed(4), None, None
    while common is None or other is None:
        x = torch.randn(3, 8, 8, generator=draw)
        if torch.equal(*(signs(objective, point_P, x) for point_P in query.points)):
            common = x
        else:
            other = x
    batch = common.expand(N, 3, 8, 8).clone()
    neighbour = batch.clone()
    neighbour[AT] = other
    seen = []

    def rows(points):
        seen.append(same(points[0].x, points[1].x))
        return window_rows(points)

    monkeypatch.setattr("dpsrm.gradients.ghost.assemble.window_rows", rows)
    GhostEngine(objective)(query, (batch,))
    before, seen = seen, []
    GhostEngine(objective)(query, (neighbour,))
    assert seen == before
    assert set(seen) == {True, False}, "the records are kept once, signs are not"


def test_inputs_are_kept_once_also_after_a_first_release_at_one_point(monkeypatch):
    """As DP-SRM's is."""
    objective, query = asked(Signs(), 1e-5)
    engine, batch, seen = GhostEngine(objective), (torch.randn(3, 3, 8, 8),), []
    engine(Query(points=query.points[:1], parts=(Part(coefficients=(1.0,), clip=1.0),)), batch)

    def rows(points):
        seen.append(same(points[0].x, points[1].x))
        return window_rows(points)

    monkeypatch.setattr("dpsrm.gradients.ghost.assemble.window_rows", rows)
    engine(query, batch)
    assert True in seen


class Stepped(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)
        nn.init.constant_(self.a.weight, 1.0)

    def forward(self, x):
        return self.b((self.a(x) > 1e4).float())


def test_a_step_that_only_some_records_take_is_refused():
    """Made-up numbers do not take it, so that the input is kept once."""
    objective, query = asked(Stepped(), 1.0)
    GhostEngine(objective)(query, (torch.randn(N, 2),))
    records = torch.randn(N, 2)
    records[AT] = 5e3
    with pytest.raises(IsolationError, match="mostly the same at two points"):
        GhostEngine(objective)(query, (records,))
    records[AT] = float("nan")
    assert torch.isfinite(GhostEngine(objective)(query, (records,)).secret).all(), "what is no number is like another"
