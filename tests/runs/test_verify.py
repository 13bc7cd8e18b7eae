"""`verify` believes an honest run and nothing else."""

import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from conftest import make_problem
from dpsrm.cli.commands import app
from dpsrm.core.errors import InputError
from dpsrm.core.events import Charge, GaussianRelease, Spending
from dpsrm.core.files import GENESIS, sha256_of
from dpsrm.core.isolation import Isolation
from dpsrm.data import Records
from dpsrm.runs import verify
from dpsrm.runs.certificate import prove, render
from dpsrm.runs.ledger import READ, Ledger, read_ledger
from dpsrm.training import Privacy, Settings, Training, train

SAID = ("report.html", "statement.json", "model_card.md", "certificate.md")
PUBLISHED = ("config.toml", "environment.json", "model.safetensors", *SAID, "ledger.jsonl")


@pytest.fixture(scope="module")
def honest_run(tmp_path_factory):
    objective, records = make_problem("logistic")
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(batch=20, steps=6))
    out = tmp_path_factory.mktemp("verify") / "run"
    return train(objective.module, objective.loss, Records(*records(100)), settings, out=out)


@pytest.fixture
def run(honest_run, tmp_path):
    return shutil.copytree(honest_run.folder.path, tmp_path / "run")


def test_an_honest_run_is_believed(run):
    result = verify(run)
    assert result.ok
    assert result.guarantee.epsilon <= 1.0


def test_training_and_verify_name_the_same_head(run, honest_run):
    assert honest_run.head == read_ledger(run / "ledger.jsonl").head
    assert verify(run, expect=honest_run.head).ok
    assert "expected head" in verify(run, expect="0" * 64).problems[0]
    with pytest.raises(InputError, match="64 hexadecimal"):
        verify(run, expect=honest_run.head[:20])


def test_an_inner_link_is_not_called_tampering(run):
    """The certificate quotes the link before the closing line; whoever copies that is told what it is."""
    ledger = read_ledger(run / "ledger.jsonl")
    count, link = ledger.charged
    assert f"link before the closing line `{link}`" in (run / "certificate.md").read_text()
    (problem,) = verify(run, expect=link).problems
    assert f"that is an inner link (line {count} of {ledger.lines}); compare with the head" in problem


def change(path, old, new):
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


def test_any_changed_byte_in_the_published_folder_is_named(run):
    """Attack 8: edits in config.toml and environment.json passed. Every file, its first, middle and last byte."""
    for name in PUBLISHED:
        saved = (run / name).read_bytes()
        for where in (0, len(saved) // 2, len(saved) - 1):
            (run / name).write_bytes(saved[:where] + bytes([saved[where] ^ 1]) + saved[where + 1 :])
            assert name in verify(run).problems[0]
        for other in (b"", saved + b"\n", saved[:-1]):
            (run / name).write_bytes(other)
            assert name in verify(run).problems[0]
        (run / name).write_bytes(saved)
    assert verify(run).ok


def test_an_edited_setting_is_named(run):
    """Attack 8, first: nothing but the protected unit was compared."""
    change(run / "config.toml", b"steps = 6", b"steps = 5")
    assert verify(run).problems == ("config.toml was changed: it is not the one the ledger was closed with",)


def test_an_emptied_environment_is_named(run):
    """Attack 8, second."""
    (run / "environment.json").write_text("{}\n")
    assert verify(run).problems == ("environment.json was changed: it is not the one the ledger was closed with",)


def test_another_protected_unit_in_config_and_certificate_is_named(run):
    """Attack 8, third: the two agreed with each other."""
    change(run / "config.toml", b"one record", b"one person")
    text = (run / "certificate.md").read_bytes()
    (run / "certificate.md").write_bytes(text.replace(b"one record", b"one person"))
    problems = " ".join(verify(run).problems)
    assert "config.toml" in problems
    assert "certificate.md" in problems


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    assert name in verify(run).problems[0]


def test_what_does_not_belong_is_named(run):
    (run / "notes.txt").write_text("mean age 41.7")
    (run / "more").mkdir()
    problems = verify(run).problems
    assert [problem.split()[0] for problem in problems] == ["more", "notes.txt"]


def test_the_published_part_alone_can_be_checked(run):
    shutil.rmtree(run / "private")
    assert verify(run).ok


def recomputed(run, **changes):
    """The run with another closing line, its certificate written anew to fit: what only an expected head notices."""
    facts = read_ledger(run / "ledger.jsonl")
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    closing = replace(facts.closing, **changes)
    (run / "certificate.md").write_text(render(facts, prove(facts, facts.closing), closing))
    files = {**closing.files, "certificate.md": sha256_of(run / "certificate.md")}
    with Ledger.reopen(run / "ledger.jsonl", facts.header, after=(0, GENESIS)) as ledger:
        ledger.close(replace(closing, files=files))


def test_a_folder_rewritten_as_a_whole_is_noticed_by_its_head_alone(run, honest_run):
    recomputed(run, unit="one person")
    assert verify(run).ok
    assert any("expected head" in problem for problem in verify(run, expect=honest_run.head).problems)


@pytest.fixture
def undeclared(tmp_path):
    """A run whose classes were read from the records."""
    objective, records = make_problem("logistic")
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(batch=20, steps=2))
    about = {"preprocessing": {"classes": ["a", "b"], "classes_from": READ}}
    train(objective.module, objective.loss, Records(*records(100)), settings, out=tmp_path / "read", about=about)
    return tmp_path / "read"


def test_a_certificate_that_hides_what_was_read_from_records_is_named(undeclared):
    result = verify(undeclared)
    assert result.ok
    assert result.facts.closing.read == ("classes",)
    assert "but for the list of classes, read from the records" in (undeclared / "certificate.md").read_text()
    told = CliRunner().invoke(app, ["verify", str(undeclared)]).output
    assert "read from the records" in told
    recomputed(undeclared, read=())
    assert "read from the records" not in (undeclared / "certificate.md").read_text()
    assert verify(undeclared).problems == (
        "classes: read from the records, says config.toml, but the certificate does not",
    )


def test_the_exception_cut_out_of_the_certificate_is_named(undeclared):
    text = (undeclared / "certificate.md").read_text().split("\n\n")
    assert text[2].startswith("**An exception.** ")
    (undeclared / "certificate.md").write_text("\n\n".join(text[:2] + text[3:]))
    assert any("certificate.md" in problem for problem in verify(undeclared).problems)


def test_a_certificate_that_says_more_than_the_ledger_is_named_though_its_digest_is_right(run):
    change(run / "certificate.md", "ε = ".encode(), "ε ≈ ".encode())
    facts = read_ledger(run / "ledger.jsonl")
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    files = {**facts.closing.files, "certificate.md": sha256_of(run / "certificate.md")}
    with Ledger.reopen(run / "ledger.jsonl", facts.header, after=(0, GENESIS)) as ledger:
        ledger.close(replace(facts.closing, files=files))
    assert verify(run).problems == ("certificate.md does not say what the ledger proves",)


def test_a_closing_line_over_fewer_files_or_more_releases_is_named(run):
    recomputed(run, released=7)
    assert any("7 releases were made of 6" in problem for problem in verify(run).problems)
    facts = read_ledger(run / "ledger.jsonl")
    recomputed(run, released=6, files={**facts.closing.files, "more.txt": "00" * 32})
    assert any("other files" in problem for problem in verify(run).problems)


def test_an_assumption_is_stated_in_words(run):
    words = "assumes, on the operator's word, that module and loss treat every example by itself"
    text = (run / "certificate.md").read_text()
    assert words not in text
    assert "Every example was evaluated alone" in text
    recomputed(run, isolation=Isolation.CHECKED)
    text = (run / "certificate.md").read_text()
    assert f"**An assumption.** The guarantee {words}" in text
    assert "alone: none" not in text
    told = " ".join(CliRunner().invoke(app, ["verify", str(run)]).stdout.split())
    assert words in told
    assert verify(run).ok


def test_the_certificate_names_unit_engine_and_files(run):
    text = (run / "certificate.md").read_text()
    closing = read_ledger(run / "ledger.jsonl").closing
    assert closing.unit == "one record"
    assert closing.engine == "linear"
    assert "the linear engine" in text
    for name in ("config.toml", "environment.json", "model.safetensors"):
        assert f"| {name} | `{sha256_of(run / name)}` |" in text


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


def test_a_folder_of_runs_is_bad_input(run):
    """As `dpsrm report` says it."""
    with pytest.raises(InputError, match=r"a run is a folder with a ledger.*give the folder of --out"):
        verify(run.parent)


def test_noise_smaller_than_charged_cannot_be_written_in(run):
    """A charge with more noise than the run used would prove a smaller ε; the chain protects it."""
    facts = read_ledger(run / "ledger.jsonl")
    event = facts.spending.charges[0].event
    louder = GaussianRelease(noise_multiplier=10 * event.noise_multiplier, sampling=event.sampling)
    assert Spending.of([Charge(louder, 1)], adjacency=facts.header.adjacency) != facts.spending
    change(run / "ledger.jsonl", repr(event.noise_multiplier).encode(), repr(louder.noise_multiplier).encode())
    assert not verify(run).ok
