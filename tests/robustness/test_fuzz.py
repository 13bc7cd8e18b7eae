"""Files from elsewhere are data: whatever they hold, a reader gives its result or one of the project's own errors.

DPSRM_FUZZ multiplies the number of inputs (docs/robustness.md says how many were tried).
"""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from dpsrm.accounting.budget import Budget
from dpsrm.accounting.budget_file import create_budget, read_budget
from dpsrm.accounting.position import Position, beside, read_position, write_position
from dpsrm.core.errors import DpsrmError
from dpsrm.core.events import Adjacency, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.core.files import GENESIS, _canonical, _link, parse, read_toml, write_toml
from dpsrm.core.secret import Streams
from dpsrm.data import load
from dpsrm.data.libsvm import read_libsvm
from dpsrm.data.tables import read_csv
from dpsrm.runs import verify
from dpsrm.runs.certificate import prove
from dpsrm.runs.folder import read_keys
from dpsrm.runs.ledger import Closing, Header, Ledger, read_ledger
from dpsrm.training import config_from
from dpsrm.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

TIMES = int(os.environ.get("DPSRM_FUZZ", "1"))
quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
fuzz = settings(max_examples=300 * TIMES, derandomize=TIMES == 1, deadline=None, suppress_health_check=quiet)


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """What a reader makes of a file does not depend on when it reached the disk (test_disk.py and test_kill.py do)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def survives(read, *arguments, **options):
    """The reader's result, or None if it refused in the project's own words."""
    try:
        return read(*arguments, **options)
    except DpsrmError:
        return None


@st.composite
def mutated(draw, good):
    """`good` with a few bytes changed, cut out, repeated, or put in."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if kind == "set" and content:
            content[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            words = [b"nan", b"1e999", b"-1", b"9" * 5000, b"[" * 3000, b"\x00", b"\xff", b":", b"\n", b'"', b"null"]
            content[at:at] = draw(st.sampled_from(words))
        else:
            content[at:at] = content[at : at + draw(st.integers(1, 60))] * draw(st.integers(1, 5))
    return bytes(content)


LIBSVM = b"+1 1:0.5 3:-2e3 # a comment\n-1 2:1 1024:7\n+1\n"
CSV = b'age,job,"city, state",ill\n31,nurse,"A, B",yes\n,?,C,no\n44.5,miner,"say ""no""",yes\n'
TOML = b"""seed = 3
record = "one visit"
[data]
path = "a.csv"
[privacy]
epsilon = 1.0
delta = 1e-5
[method]
name = "srm"
gamma = 0.5
[training]
batch = 10
[model]
hidden = [3, 4]
"""


@fuzz
@given(raw=st.one_of(st.binary(max_size=300), mutated(LIBSVM)))
def test_libsvm(raw):
    survives(read_libsvm, raw)


@fuzz
@given(raw=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode), mutated(CSV)))
def test_csv(raw):
    survives(read_csv, raw)


@fuzz
@given(raw=mutated(CSV))
def test_a_table_is_loaded_or_refused(raw, tmp_path):
    (tmp_path / "t.csv").write_bytes(raw)
    survives(load, tmp_path / "t.csv", "ill")


@fuzz
@given(raw=st.one_of(st.binary(max_size=200), mutated(TOML)))
def test_config_text(raw, tmp_path):
    (tmp_path / "c.toml").write_bytes(raw)
    sections = survives(read_toml, tmp_path / "c.toml")
    if sections is not None:
        survives(config_from, sections)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
SECTIONS = {
    "data": ("path", "test", "target", "schema", "classes", "features", "normalise"),
    "model": ("kind", "hidden"),
    "privacy": ("epsilon", "delta", "adjacency", "sampling", "accountant", "noise_multiplier"),
    "method": ("name", "gamma", "max_grad_norm", "max_diff_norm", "clip", "relative", "gamma_schedule"),
    "training": ("batch", "steps", "epochs", "learning_rate", "optimizer", "decay", "warmup", "output", "regulariser"),
    "theory": ("lipschitz", "smoothness", "gap", "zeta", "n0", "excess", "batches", "beta", "zeta_factor"),
    "performance": ("engine", "threads", "checkpoint_seconds", "checkpoint_steps"),
}


CHANGES = {name: st.lists(st.tuples(st.sampled_from(each), json_values), max_size=2) for name, each in SECTIONS.items()}
TOP = st.lists(st.tuples(st.sampled_from(["seed", "record", "private", "budget", *SECTIONS]), json_values), max_size=1)


@fuzz
@given(changes=st.fixed_dictionaries(CHANGES), top=TOP)
def test_config_values_of_every_type(changes, top):
    """Well-formed sections with any value under any name."""
    base = {"data": {"path": "a.csv"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
    for section, values in changes.items():
        if values:
            base.setdefault(section, {}).update(values)
    survives(config_from, base | dict(top))


HEADER = Header(adjacency=Adjacency.REPLACE_ONE, epsilon=9.0, delta=1e-5, accountant="rdp", private_randomness=True)
GAUSS = GaussianRelease(noise_multiplier=1.1, sampling=Sampling(scheme=Scheme.POISSON, population=100, batch=10))

CLOSE = {"kind": "close", "released": 3, "unit": "one record", "isolation": "alone", "engine": "loop"}
BOUND = ("config.toml", "environment.json", "model.safetensors", "statement.json", "model_card.md", "report.html")
CLOSE["files"] = dict.fromkeys((*BOUND, "certificate.md"), "ab" * 32)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "ledger.jsonl"
    with Ledger(path, HEADER) as open_ledger:
        open_ledger.charge(GAUSS, 3)
        open_ledger.close(Closing.from_json(CLOSE))
    return path.read_bytes()


@fuzz
@given(data=st.data())
def test_ledger_bytes(ledger, data, tmp_path):
    (tmp_path / "ledger.jsonl").write_bytes(data.draw(st.one_of(st.binary(max_size=300), mutated(ledger))))
    survives(read_ledger, tmp_path / "ledger.jsonl")
    survives(read_ledger, tmp_path / "ledger.jsonl", torn=True)
    survives(read_budget, tmp_path / "ledger.jsonl")


def chained(bodies):
    """Bodies as a chain whose every hash is right: what a forger would write."""
    head, lines = GENESIS, []
    for index, body in enumerate(bodies):
        head = _link(head, body)
        lines.append(_canonical({"index": index, "body": body, "hash": head}))
    return b"".join(line + b"\n" for line in lines)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@fuzz
@given(data=st.data())
def test_forged_ledgers(data, tmp_path):
    """Chains with right hashes and wrong contents, through `verify` to the accountant."""
    draw = data.draw
    header, event = HEADER.to_json(), {"kind": "gaussian", "noise_multiplier": 1.1}
    event["sampling"] = {"scheme": "poisson", "population": 100, "batch": 10}
    charge, close = {"kind": "charge", "event": event, "count": 3}, {**CLOSE, "files": {**CLOSE["files"]}}
    target = draw(st.sampled_from([header, event, event["sampling"], charge, close, close["files"]]))
    target[draw(st.sampled_from(sorted(target)))] = draw(odd)
    if draw(st.booleans()):
        charge["event"] = {"kind": draw(st.sampled_from(["zcdp", "pure", "unprotected"])), "rho": draw(odd)}
    (tmp_path / "ledger.jsonl").write_bytes(chained([header, charge, close]))
    facts = survives(read_ledger, tmp_path / "ledger.jsonl")
    if facts is not None:
        survives(prove, facts, facts.closing)
    verify(tmp_path)


@pytest.fixture(scope="module")
def budget_header(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "budget"
    create_budget(path, Budget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    return json.loads(path.read_bytes())["body"]


@fuzz
@given(data=st.data())
def test_forged_budgets(budget_header, data, tmp_path):
    draw = data.draw
    path, header = tmp_path / "budget", {**budget_header}
    charges = [[{"kind": "pure", "epsilon": 0.1}, 2]]
    line = {"kind": "reservation", "run": "a", "data": "d", "charges": charges}
    target = draw(st.sampled_from([header, line, charges[0][0]]))
    target[draw(st.sampled_from(sorted(target)))] = draw(odd)
    forged = chained([header, line])
    path.write_bytes(forged)
    lines = parse(forged, path)
    position = Position(file=str(path), budget=lines.hashes[0], lines=len(lines.hashes), head=lines.head)
    write_position(beside(path), position)
    found = survives(read_budget, path)
    if found is not None:
        survives(lambda: found.spent)


STREAMS = Streams.seeded(5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "checkpoint.safetensors"
    state = {
        "theta": torch.ones(4),
        "std": 0.0,
        "stepper": {"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 1)},
    }
    made = Spending.of([], adjacency=Adjacency.REPLACE_ONE).plus(GAUSS, 2)
    found = Checkpoint(facts={"plan": {"n": 3}}, released=made, ledger=(1, GENESIS), walk=state, output={"weight": 1.0})
    write_checkpoint(path, found, STREAMS)
    return path.read_bytes()


def test_checkpoints_survive_a_file(checkpoint, tmp_path):
    (tmp_path / "c").write_bytes(checkpoint)
    found = read_checkpoint(tmp_path / "c", STREAMS, parameters=4)
    assert found.walk["stepper"] == {"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 1)}
    assert found.released.releases == 2


@fuzz
@given(data=st.data())
def test_checkpoint_bytes(checkpoint, data, tmp_path):
    raw = data.draw(st.one_of(st.binary(max_size=300), mutated(checkpoint)))
    (tmp_path / "c").write_bytes(raw)
    found = survives(read_checkpoint, tmp_path / "c", STREAMS, parameters=4)
    assert found is None or raw == checkpoint


@fuzz
@given(body=json_values, data=st.data())
def test_forged_checkpoints(body, data, tmp_path):
    """The right tag on wrong JSON: only whoever has the key could write it, and still it is only data."""
    base = {"version": 3, "facts": {"map": []}, "adjacency": "replace-one", "released": [], "ledger": [0, GENESIS]}
    base |= {"walk": {"map": []}, "output": {"map": []}}
    base[data.draw(st.sampled_from(sorted(base)))] = body
    text = json.dumps(base)
    packed = save({}, {"dpsrm": text})
    (tmp_path / "c").write_bytes(packed + STREAMS.tag([packed]).encode())
    survives(read_checkpoint, tmp_path / "c", STREAMS, parameters=4)


@fuzz
@given(raw=st.one_of(st.binary(max_size=200), mutated(json.dumps({"private": True, "key": "0a" * 32}).encode())))
def test_key_files(raw, tmp_path):
    (tmp_path / "k").write_bytes(raw)
    (tmp_path / "k").chmod(0o600)
    survives(read_keys, tmp_path / "k")


@fuzz
@given(raw=st.one_of(st.binary(max_size=200), mutated(b'{"file": "b", "budget": "0a", "lines": 2, "head": "0b"}\n')))
def test_positions_of_budgets(raw, tmp_path):
    (tmp_path / "b.head").write_bytes(raw)
    survives(read_position, tmp_path / "b.head")


def test_files_that_are_too_large_are_refused(tmp_path):
    for name, read in (("l", read_ledger), ("t", read_toml)):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(2**29)
        with pytest.raises(DpsrmError, match="at most"):
            read(path)
    path = tmp_path / "c"
    with path.open("wb") as file:
        file.truncate(2**29)
    with pytest.raises(DpsrmError, match="at most"):
        read_checkpoint(path, STREAMS, parameters=4)


def test_folders_and_devices_are_refused(tmp_path):
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(DpsrmError):
            read_ledger(path)


def test_a_config_is_written_back_as_it_was_read(tmp_path):
    write_toml(tmp_path / "c.toml", {"a": 1})
    assert read_toml(tmp_path / "c.toml") == {"a": 1}
