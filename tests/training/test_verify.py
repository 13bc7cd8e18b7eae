"""`verify` believes an honest run and nothing else."""

import shutil

import pytest

from conftest import make_problem
from dpsrm.core.errors import InputError
from dpsrm.core.events import Charge, GaussianRelease, Spending
from dpsrm.core.ledger import Ledger, read_ledger
from dpsrm.data import Records
from dpsrm.training import Privacy, Settings, Training, train, verify


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    objective, records = make_problem("logistic")
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(batch=20, steps=6))
    out = tmp_path_factory.mktemp("verify") / "run"
    train(objective.module, objective.loss, Records(*records(100)), settings, out=out)
    return out


@pytest.fixture
def run(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "run")


def test_an_honest_run_is_believed(run):
    result = verify(run)
    assert result.ok
    assert result.guarantee.epsilon <= 1.0


def change(path, old, new):
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


def test_a_changed_ledger_model_or_certificate_is_not(run):
    for name, old, new in (
        ("ledger.jsonl", b'"count":6', b'"count":5'),
        ("certificate.md", "ε = ".encode(), "ε ≈ ".encode()),
        ("config.toml", b"one record", b"one person"),
    ):
        saved = (run / name).read_bytes()
        change(run / name, old, new)
        assert not verify(run).ok, name
        (run / name).write_bytes(saved)
    model = bytearray((run / "model.safetensors").read_bytes())
    model[-1] ^= 1
    (run / "model.safetensors").write_bytes(bytes(model))
    assert "model" in verify(run).problems[0]


def test_dropping_the_last_lines_is_noticed(run):
    """The chain of a shortened ledger is intact; the run is then unfinished, and the certificate's head is another."""
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "unfinished" in verify(run).problems[0]


def rewritten(run, *, multiply):
    """The run with a freshly chained ledger whose charges are multiplied."""
    facts = read_ledger(run / "ledger.jsonl")
    (run / "ledger.jsonl").unlink()
    with Ledger(run / "ledger.jsonl", facts.header) as ledger:
        for charge in facts.spending.charges:
            ledger.charge(charge.event, charge.count * multiply)
        ledger.close(facts.closing)


def test_a_ledger_written_anew_does_not_fit_the_certificate(run):
    rewritten(run, multiply=2)
    problems = verify(run).problems
    assert any("above the promised" in problem for problem in problems)
    assert any("certificate" in problem for problem in problems)


def test_a_missing_file_is_a_problem_not_a_crash(run):
    (run / "model.safetensors").unlink()
    assert not verify(run).ok
    (run / "ledger.jsonl").unlink()
    assert not verify(run).ok


def test_no_run_at_all_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="folder"):
        verify(tmp_path / "nothing")


def test_noise_smaller_than_charged_cannot_be_written_in(run):
    """A charge with more noise than the run used would prove a smaller ε; the chain protects it."""
    facts = read_ledger(run / "ledger.jsonl")
    event = facts.spending.charges[0].event
    louder = GaussianRelease(noise_multiplier=10 * event.noise_multiplier, sampling=event.sampling)
    assert Spending.of([Charge(louder, 1)], adjacency=facts.header.adjacency) != facts.spending
    change(run / "ledger.jsonl", repr(event.noise_multiplier).encode(), repr(louder.noise_multiplier).encode())
    assert not verify(run).ok
