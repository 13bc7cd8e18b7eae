"""Written-out rows: compiled passes against exact sums, and pooling in either order of memory against torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.gradients import GhostEngine, LoopEngine, Objective, Part, Query, multiclass_loss
from dpsrm.gradients.ghost.pooling import _Pool, _PoolRows
from dpsrm.gradients.ghost.written import WrittenRows

ATOMS = ((0, 0), (0, 1), (1, 1))


def rows(examples, size, *, points=2, dtype=torch.float32):
    """Rows at each point, side by side in memory as convolutions write them."""
    draw = torch.Generator().manual_seed(examples * size)
    together = torch.randn(examples, points * size, generator=draw, dtype=dtype)
    return [together[:, point * size : (point + 1) * size] for point in range(points)]


def atom(points, j, k):
    return points[j].double() if j == k else points[j].double() - points[k].double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("examples", "size"), [(1, 1), (3, 15), (5, 16), (7, 33), (4, 2500), (0, 4), (3, 0)])
def test_norms_and_sums_are_those_of_float64(examples, size, dtype):
    points = rows(examples, size, dtype=dtype)
    compiled, by_torch = WrittenRows(points), WrittenRows(points)
    by_torch._compiled = False
    weights = {a: torch.rand(examples, dtype=torch.float64) for a in ATOMS}
    part = {(0, 1): -0.5, (1, 1): 1.5}
    for written in (compiled, by_torch):
        for j, k in ATOMS:
            torch.testing.assert_close(written.square((j, k)), atom(points, j, k).square().sum(1), rtol=1e-13, atol=0)
        mixed = -0.5 * atom(points, 0, 1) + 1.5 * atom(points, 1, 1)
        torch.testing.assert_close(written.square_of(part), mixed.square().sum(1), rtol=1e-12, atol=0)
        exact = sum(weights[j, k] @ atom(points, j, k) for j, k in ATOMS)
        torch.testing.assert_close(written.weighted(weights, slice(0, examples)), exact, rtol=1e-12, atol=1e-13)


def test_some_examples_alone():
    points = rows(9, 40)
    weights = {(0, 0): torch.rand(9, dtype=torch.float64), (0, 1): torch.rand(9, dtype=torch.float64)}
    cut = slice(4, 9)
    exact = sum(w[cut] @ atom(points, *a)[cut] for a, w in weights.items())
    torch.testing.assert_close(WrittenRows(points).weighted(weights, cut), exact, rtol=1e-12, atol=1e-13)


def test_a_small_difference_keeps_all_its_digits():
    """x and y agree in 23 bits; were w·(x − y) computed as w·x − w·y, the sum would keep half of its digits."""
    x = 1 + torch.rand(64, 100, generator=torch.Generator().manual_seed(0))
    y = torch.nextafter(x, torch.tensor(10.0))
    difference, weight_B = x.double() - y.double(), torch.full((64,), 1 / 3, dtype=torch.float64)
    written = WrittenRows([x, y])
    torch.testing.assert_close(written.square((0, 1)), difference.square().sum(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(written.square_of({(0, 1): 1 / 3, (1, 1): 1e-12})[:1], torch.tensor(
        [math.fsum((d / 3 + 1e-12 * b) ** 2 for d, b in zip(difference[0].tolist(), y[0].tolist(), strict=True))],
        dtype=torch.float64,
    ), rtol=1e-13, atol=0)  # fmt: skip
    exact = [math.fsum(column) / 3 for column in difference.T.tolist()]
    found = written.weighted({(0, 1): weight_B}, slice(0, 64))
    assert found.tolist() == pytest.approx(exact, rel=1e-13, abs=0)


@pytest.mark.parametrize(("examples", "size"), [(1, 1), (5, 16), (7, 33), (4, 2500), (0, 4)])
def test_rows_at_one_point_give_what_they_give_at_two(examples, size):
    (x,) = rows(examples, size, points=1)
    alone, twice = WrittenRows([x]), WrittenRows([x, x])
    torch.testing.assert_close(alone.square((0, 0)), twice.square((0, 0)), rtol=1e-14, atol=0)
    weight_B = torch.rand(examples, dtype=torch.float64)
    for cut in (slice(0, 4), slice(2, 9)):
        found, wanted = (written.weighted({(0, 0): weight_B}, cut) for written in (alone, twice))
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-15)


def test_rows_of_any_layout_and_of_many_points():
    x, y, z = rows(6, 10, points=3)
    spread = x[:1].expand(6, 10)
    torch.testing.assert_close(WrittenRows([spread]).square((0, 0)), spread.double().square().sum(1))
    turned = x.T.contiguous().T
    assert torch.equal(WrittenRows([turned]).square((0, 0)), WrittenRows([x.contiguous()]).square((0, 0)))
    torch.testing.assert_close(WrittenRows([x, y, z]).square((1, 2)), (y.double() - z.double()).square().sum(1))


def test_silenced_rows_count_for_nothing():
    x, y = rows(3, 20)
    x[1, 3] = math.inf
    written = WrittenRows([x, y])
    assert not math.isfinite(float(written.square((0, 1))[1]))
    written.silence(torch.tensor([True, False, True]))
    assert float(written.square((0, 1))[1]) == float(written.square((1, 1))[1]) == 0


def test_what_an_example_gives_depends_on_no_other():
    points = rows(8, 50)
    alone = [WrittenRows([p[i : i + 1] for p in points]).square((0, 1)) for i in range(8)]
    assert torch.equal(torch.cat(alone), WrittenRows(points).square((0, 1)))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pooling_is_torchs_own_in_every_number(order):
    x = torch.randint(3, (2, 6, 9, 9)).float().contiguous(memory_format=order).requires_grad_()  # many ties
    settings = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    pooled, expected = _Pool.apply(x, *settings), F.max_pool2d(x, *settings)
    assert torch.equal(pooled, expected)
    assert pooled.is_contiguous(memory_format=order)
    g = torch.rand(pooled.shape)
    (found,), (wanted,) = torch.autograd.grad(pooled, x, g), torch.autograd.grad(expected, x, g)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kernel", "down"), [([2, 2], 1), ([3, 2], 2), ([1, 4], 3), ([2, 1], 1)])
def test_pooling_row_by_row_is_torchs_own_in_every_number(kernel, down, dtype):
    x = torch.randint(3, (2, 6, 9, 8), dtype=dtype).contiguous(memory_format=torch.channels_last)  # many ties
    x[0, 2, 4, 4] = x[0, 2, 4, 5] = math.nan
    x[1, 0, 3, 3], x[1, 1] = math.inf, -math.inf
    settings = (kernel, [down, 1], [0, 0], [1, 1], False)
    x.requires_grad_()
    pooled, expected = _PoolRows.apply(x, *settings), F.max_pool2d(x, *settings)
    assert torch.equal(pooled.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(pooled.isnan(), expected.isnan())
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    g = torch.rand(pooled.shape, dtype=dtype)
    (found,), (wanted,) = torch.autograd.grad(pooled, x, g), torch.autograd.grad(expected, x, g)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "settings", [(2, 1), (2, 2), (3, 1, 1), (2, 1, 0, 2), (2, 1, 0, 1, False, True), ((2, 3), (2, 1))]
)
def test_pooling_of_many_channels_comes_to_what_the_loop_finds(settings):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 16, 3), nn.MaxPool2d(*settings), nn.Flatten())
    batch = torch.randn(5, 1, 9, 9), torch.randint(2, (5,))
    module = nn.Sequential(trunk, nn.Linear(trunk(batch[0]).shape[1], 2))
    objective = Objective.of(module, multiclass_loss)
    query = Query(points=(objective.theta(),), parts=(Part(coefficients=(1.0,), clip=0.1),))
    found, wanted = (engine(objective)(query, batch).secret for engine in (GhostEngine, LoopEngine))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
