"""Layers: native, or exact through torch.func, or refused with a remedy; and the table of docs/layers.md says which."""

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import IsolationError
from dpsrm.core.events import Adjacency
from dpsrm.gradients import FunctionalEngine, GhostEngine, LoopEngine, Objective, Query
from dpsrm.gradients.ghost.recorder import Recorder
from dpsrm.gradients.ghost.recording import record
from dpsrm.gradients.ghost.tap import NestedError, depend, show
from gradients.ghost_cases import Wrapped, losses, parameter, query_of, relative_error
from gradients.layer_cases import CASES, FALLBACK, NATIVE, REFUSED, RUNS, WORDS, cases, weights

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"
BEGIN, END = "<!-- made by tests/gradients/test_layers.py: begin -->", "<!-- end -->"
HOW = {NATIVE: "native", FALLBACK: "`torch.func`, exact and slower", REFUSED: "refused, with a remedy"}
_REMEDIES = {
    "packed sequences": "a mask",
    "MoE, routed by nonzero": "all experts",
    "activation checkpointing": "checkpointing off",
    "activation checkpointing, reentrant": "checkpointing off",
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:None of the inputs have requires", "ignore:LSTM with projections"
)


def problem(name, b):
    """A case's objective, its float64 twin, and b records."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        module, shape, _ = cases()[name]
        inputs = torch.randint(7, (b, 6)) if shape == WORDS else torch.randn(b, *shape)
        targets = torch.randn(b)
    return Objective.of(module, losses), Objective.of(copy.deepcopy(module).double(), losses), (inputs, targets)


def double(value):
    return value.double() if value.is_floating_point() else value


def answer(engine, query, batch):
    """A float64 engine's answer to a float32 query."""
    points = tuple(point_P.double() for point_P in query.points)
    return engine(Query(points=points, parts=query.parts), tuple(map(double, batch))).secret


@pytest.mark.parametrize(("kind", "b"), [("one", 4), ("far", 4), ("far", 1), ("one", 0)])
@pytest.mark.parametrize("name", RUNS)
def test_equals_the_float64_oracle(name, kind, b):
    objective, exact, batch = problem(name, b)
    query, notes = query_of(objective, kind, C1=0.3), []
    found = GhostEngine(objective, notice=notes.append)(query, batch)
    assert relative_error(found.secret, answer(LoopEngine(exact), query, batch)) <= 2e-5
    assert bool(notes) == (b > 0 and cases()[name][2] == FALLBACK), notes
    if b == 1:
        assert float(found.secret.norm()) <= query.bound


@pytest.mark.parametrize("name", RUNS)
def test_replacing_a_record_moves_the_sum_by_no_more_than_the_sensitivity(name):
    objective, _, (inputs, targets) = problem(name, 4)
    query, run = query_of(objective, "far", C1=0.3), GhostEngine(objective, notice=lambda _: None)
    before = run(query, (inputs, targets))
    for who in range(4):
        other = inputs.clone(), targets.clone()
        other[0][who] = 30 * other[0][who] if inputs.is_floating_point() else (other[0][who] + 1) % 7
        other[1][who] = -100.0
        moved = float((run(query, other).secret - before.secret).norm())
        assert moved <= before.sensitivity(Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("name", [name for name in CASES if name not in RUNS])
def test_what_is_refused_is_refused_with_a_remedy(name):
    objective, exact, batch = problem(name, 4)
    query = query_of(objective, "one", C1=0.3)
    with pytest.raises(IsolationError, match=_REMEDIES[name]):
        GhostEngine(objective)(query, batch)
    if "reentrant" not in name:  # which torch itself refuses for gradients of some tensors
        assert float(answer(LoopEngine(exact), query, batch).norm()) > 0, "the loop takes it"


@pytest.mark.parametrize("name", ["nn.RNN", "nn.LSTM with proj_size", "nn.GRUCell", "nn.Embedding, sparse"])
def test_functional_engine_and_losses_take_them_too(name):
    objective, exact, batch = problem(name, 4)
    query = query_of(objective, "far", C1=0.3)
    found = FunctionalEngine(objective)(query, batch).secret
    assert relative_error(found, answer(LoopEngine(exact), query, batch)) <= 2e-5
    alone = [objective.alone(query.points[0], one) for one in zip(*batch, strict=True)]
    assert torch.allclose(objective.losses(query.points[0], batch), torch.stack(alone))


# what is computed from parameters alone holds no example


def smuggled(write):
    """A module that tries to bring an example's numbers into a tensor made of a parameter."""
    return Wrapped(lambda m, x: m.w(x) * write(m.p * 1, x), w=nn.Linear(4, 3), p=parameter(3))


ATTEMPTS = {
    "by a number": lambda v, x: v * x.mean().item(),
    "by a list": lambda v, x: v * torch.tensor(x.tolist())[0, :3],
    "by an array": lambda v, x: v * torch.from_numpy(x.numpy())[0, :3],
    "by writing": lambda v, x: v.copy_(x[0, :3]),
    "by writing data": lambda v, x: v.data.copy_(x[0, :3]) * v,
    "by an index": lambda v, x: v[int(x.argmax()) % 3],
}


@pytest.mark.parametrize("how", ATTEMPTS)
def test_no_example_gets_into_what_is_made_of_parameters(how):
    objective = Objective.of(smuggled(ATTEMPTS[how]), losses)
    with pytest.raises(IsolationError):
        GhostEngine(objective, notice=lambda _: None)(query_of(objective, "one"), (torch.randn(3, 4), torch.randn(3)))


def test_vmap_says_what_depends_on_an_example():
    def one(x):
        free = torch.ones(2)
        assert depend(x, x + free, free, torch.rand(2), free * 2) == (True, False, True, False)
        return x

    torch.vmap(one, randomness="different")(torch.randn(3))


def test_a_forged_derived_tensor_is_not_taken_for_one():
    """Even if a tensor with examples in it were noted as made of parameters alone, it is asked for before its use."""

    def one(x):
        recorder = Recorder({}, batch=None)
        recorder.example, made = x, (x * 2, torch.ones(2, requires_grad=True) * 2)
        for tensor in made:
            recorder.names[id(tensor)] = recorder.derived.name(tensor, "forged")
        assert [recorder._watched(tensor) for tensor in made] == [False, True]
        return x

    torch.vmap(one)(torch.ones(3))


def test_another_vmap_inside_is_not_taken_for_the_examples():
    def one(x):
        with pytest.raises(NestedError):
            torch.vmap(lambda y: depend(x, y) and y)(torch.ones(5))
        return x

    torch.vmap(one)(torch.randn(3))


def test_differentiating_inside_is_noticed():
    def one(x):
        with pytest.raises(NestedError):
            torch.func.grad(lambda y: show(Nobody(), x, y * 2).sum())(x)
        return x

    torch.vmap(one)(torch.ones(3))


class Nobody:
    """A witness that does nothing."""

    def saw(self, output, inputs):
        return output


def drawn(m, x):
    """A parameter with noise of each example's own: made of a parameter alone, but not the same for all."""
    return x * torch.dropout(m.p, 0.5, True) + F.linear(x, torch.dropout(m.w, 0.5, True))


def test_what_draws_for_each_example_is_not_made_of_parameters_alone():
    objective = Objective.of(weights(drawn, p=(4,), w=(4, 4)), losses)
    batch, query, notes = (torch.randn(5, 4), torch.randn(5)), query_of(objective, "one", C1=0.3), []
    run = GhostEngine(objective, notice=notes.append)
    torch.manual_seed(0)
    found = run(query, batch).secret
    torch.manual_seed(0)
    assert torch.equal(FunctionalEngine(objective)(query, batch).secret, found)
    assert [note.partition("because of ")[2] for note in notes] == ["no rule for the use of p, w"]


def test_a_parameter_has_one_copy_for_all_its_uses():
    objective = Objective.of(weights(lambda m, x: (x - m.p) / m.p.exp() + torch.where(x > 0, m.p, x), p=(4,)), losses)
    batch = torch.randn(3, 4), torch.randn(3)
    recording = record(objective, objective.layout.read(objective.module), batch)
    assert [call.key[0] for call in recording.calls] == ["copies", "copies"]
    assert [call.key[1][0].partition("#")[0] for call in recording.calls] == ["p", "exp"]


def test_says_once_why_torch_func_is_needed():
    objective, _, batch = problem("torch.vmap inside", 4)
    notes = []
    run = GhostEngine(objective, notice=notes.append)
    for _ in range(2):
        run(query_of(objective, "one"), batch)
    assert notes == [
        "torch.func computes every gradient, more slowly, because of a module that calls torch.func.vmap inside"
    ]


# the page


def table():
    """The page's table: what the tests above find of each case."""
    lines = ["| layer, or way to use a parameter | per-example gradients |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {HOW[how]} |" for name, (_, _, how) in cases().items())])


def test_the_page_says_what_the_tests_find():
    found = re.search(f"{re.escape(BEGIN)}\n(.*?)\n{re.escape(END)}", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1].strip() == table(), f"put this into {PAGE.name}:\n{table()}"


def test_written_out_gradients_make_pieces_smaller(caplog):
    """A derived weight of 4 million numbers: 8 examples' gradients are 128 MB."""
    module = weights(lambda m, x: F.linear(x, m.w * 2), w=(2048, 2048))
    objective = Objective.of(module, losses)
    with caplog.at_level("INFO"):
        GhostEngine(objective)(query_of(objective, "one"), (torch.randn(1, 2048), torch.randn(1)))
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert said.message.startswith(f"up to 8 examples at a time: each holds {2048 * 2048 + 2 * 2048} numbers; ")
