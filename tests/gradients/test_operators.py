"""Every operator in torch's own list keeps examples apart under vmap, forward and back, or is refused.

Some examples hold what could disturb others (zeros, NaN, huge numbers, indices outside of their tensor) among examples
that do not; these must have the outputs and gradients that they have alone. So must they where no tensor is an
example's own, but each example weighs what comes out. DPSRM_OPERATORS=3 takes three samples of every operator and all
disturbances (`make soak`); without it, one sample is taken, and a few disturbances.
"""

import os

import pytest
import torch

from dpsrm.core.errors import DpsrmError
from dpsrm.gradients.back import gradients_at
from dpsrm.gradients.below import guarded
from dpsrm.gradients.fresh import Fresh
from dpsrm.gradients.passes import each_alone
from gradients.operator_cases import Case, cases, disturbances, known, operators

SAMPLES = int(os.environ.get("DPSRM_OPERATORS", "1"))
PLAIN, DISTURBED, LARGE = [1, 4], [0, 3], 2
"""Five examples, as many as the samples have rows: rules that take the examples for another dimension run through then.
One is large, so that the product of its numbers overflows where that of all but one does not."""
SHARDS = 8
ERRORS = (RuntimeError, IndexError, ValueError, NotImplementedError, DpsrmError)


@pytest.fixture(autouse=True)
def flags_may_be_set():
    """torch's list forbids to set flags of its backends, for good, which others need."""
    yield
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True


def weights(numbers):
    return torch.linspace(0.3, 1.7, numbers.shape[-1], dtype=torch.float64)


def loss(case, tensors):
    """A number that every output moves."""
    found = case.output([tensor * 1 if tensor.is_floating_point() else tensor for tensor in tensors])
    return (found * weights(found)).sum()


def leaves(tensors):
    return [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]


def flat(value, gradients, like):
    """An example's loss and gradients in one row; of several examples in several."""
    count = value.numel()
    rows = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, like, strict=True)]
    kept = [g.detach().reshape(count, -1).double() for g, x in zip(rows, like, strict=True) if x.is_floating_point()]
    return torch.cat([value.detach().reshape(count, 1), *kept], 1)


def back_outside(case, batch):
    """As in the ghost engine: a pass under vmap, and the way back of all examples at once."""
    given = leaves(batch)
    losses_B = each_alone(lambda one: loss(case, one), given)
    asked = [x for x in given if x.is_floating_point()]
    if not losses_B.requires_grad:
        return flat(losses_B, [None] * len(given), given)
    found = iter(gradients_at(losses_B, asked))
    return flat(losses_B, [next(found) if x.is_floating_point() else None for x in given], given)


def back_inside(case, batch):
    """As in the functional engine: each example's way back under vmap."""
    floating = tuple(at for at, x in enumerate(batch) if x.is_floating_point())
    if not floating:
        return back_outside(case, batch)
    one = torch.func.grad_and_value(lambda *tensors: loss(case, tensors), argnums=floating)
    gradients, losses_B = each_alone(lambda tensors: one(*tensors), batch)
    found = dict(zip(floating, gradients, strict=True))
    return flat(losses_B, [found.get(at) for at in range(len(batch))], batch)


def alone(case, tensors):
    """By an ordinary call."""
    given = leaves(tensors)
    with Fresh():
        value = loss(case, given)
    asked = [x for x in given if x.is_floating_point()]
    found = iter(torch.autograd.grad(value, asked, allow_unused=True) if value.requires_grad else [None] * len(asked))
    return flat(value, [next(found) if x.is_floating_point() else None for x in given], given)[0]


def same(one, other):
    return torch.allclose(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


def disturbed(case):
    """What stands in a record: every tensor disturbed alone, then all together."""
    own = [case.tensors[at] for at in case.own]
    each = [disturbances(tensor) for tensor in own]
    found = [[*own[:at], value, *own[at + 1 :]] for at, values in enumerate(each) for value in values]
    together = [[values[i % len(values)] for values in each] for i in range(max(map(len, each)))]
    found += together if len(own) > 1 else []
    return found if SAMPLES > 1 else found[:: max(1, len(found) // 4)]


def with_records(batch, records):
    """The batch with these records at the places that are disturbed."""
    changed = [tensor.clone() for tensor in batch]
    for at, record in zip(DISTURBED, records, strict=False):
        for tensor, value in zip(changed, record, strict=True):
            tensor[at] = value
    return changed


def crossed(case, way):
    """What one example does to others, in words; None if nothing."""
    own = [case.tensors[at] for at in case.own]
    batch = [torch.stack([x] * 5) for x in own]
    for tensor in batch:
        tensor[LARGE] *= 1e8 if tensor.is_floating_point() else 1
    before = drawn(case, way, batch)
    lone = alone(case, own)
    known = ~lone.isnan()  # of a masked NaN torch's own derivative of a product is NaN; ours looks at no value
    if not case.random and not same(before[PLAIN[-1]][known], lone[known]):
        return "another result than alone"
    records = disturbed(case)
    pairs = [records[at : at + 2] for at in range(0, len(records), 2)]
    while pairs:
        some = pairs.pop()
        try:
            after = drawn(case, way, with_records(batch, some))
        except ERRORS:  # a record that stops a pass reaches nobody; but the other one may
            pairs += [[one] for one in some] if len(some) > 1 else []
            continue
        others = [*PLAIN, LARGE]
        if not same(before[others], after[others]):
            return f"moved by {[[value.flatten()[:2].tolist() for value in one] for one in some]}"
    return None


def drawn(case, way, batch):
    """The same random numbers every time."""
    torch.manual_seed(0)
    return way(case, batch)


WEIGHED = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
DISTANCES = Case("cdist", lambda t: torch.cdist(t[0], t[0] + 1), (torch.arange(6.0).view(3, 2),), (0,))


def weighed(case):
    """What no example's own is, weighed by each example: the gradients of three, and those that they must have."""
    tensors = tuple(tensor.clone() for tensor in case.tensors)
    floating = tuple(at for at, x in enumerate(tensors) if x.is_floating_point() and x.numel())
    one = torch.func.grad(lambda weight, *given: weight * loss(case, given), argnums=tuple(at + 1 for at in floating))
    found = each_alone(lambda weight: torch.cat([g.flatten() for g in one(weight, *tensors)]), WEIGHED)
    whole = alone(case, tensors)[1:]
    sizes = [x.numel() for x in tensors if x.is_floating_point()]
    pieces = [piece for piece in torch.split(whole, sizes) if len(piece)]
    return found.double(), WEIGHED[:, None] * torch.cat(pieces)


def wrongly_weighed(case):
    """Whether an example's gradient of what parameters alone make is another's, if torch runs such a call at all."""
    try:
        found, right = weighed(case)
    except (TypeError, *ERRORS):
        return False
    known = right.isfinite()
    return not torch.allclose(found[known], right[known], rtol=1e-2, atol=1e-3)  # some samples are large numbers


def runs(case, way):
    """What crossed, if torch (and the library) run such a call at all."""
    if way is back_inside and case.own == tuple(range(len(case.tensors))) and not case.random and wrongly_weighed(case):
        return "another's gradient of what parameters alone make"
    try:
        return crossed(case, way)
    except (TypeError, *ERRORS):
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [back_outside, back_inside])
@pytest.mark.parametrize("case", list(known()), ids=lambda case: case.name)
def test_what_reached_others_once_does_not(case, way):
    assert runs(case, way) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [back_outside, back_inside])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_operator_lets_one_example_reach_another(shard, way):
    with guarded():
        found = {
            case.name: what
            for operator in operators()[shard::SHARDS]
            for case in cases(operator, samples=SAMPLES)
            if (what := runs(case, way)) is not None
        }
    assert found == {}


@pytest.mark.filterwarnings("ignore")
def test_distances_between_parameters_are_weighed_wrongly_by_torch():
    one = torch.func.grad(lambda weight, x: weight * torch.cdist(x, x + 1).sum(), argnums=1)
    found = torch.func.vmap(one, in_dims=(0, None))(WEIGHED.float(), DISTANCES.tensors[0] ** 2)
    assert torch.equal(found[0], found[1]), "torch has mended it: `distances` can go"
    assert not wrongly_weighed(DISTANCES)
