"""`dpsrm report`, and what `dpsrm verify` says of pages that do not fit the ledger."""

import hashlib
import json
import shutil
import webbrowser

import pytest
import torch
from torch import nn

from dpsrm.gradients import binary_loss
from dpsrm.report import published
from dpsrm.runs import RunFolder
from dpsrm.runs.certificate import render
from dpsrm.runs.ledger import read_ledger
from dpsrm.training import Privacy, Settings, Training, train
from robustness.test_fuzz import chained


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    inputs = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    settings = Settings(privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(batch=20, steps=6))
    out = tmp_path_factory.mktemp("cli-report") / "run"
    return train(nn.Linear(3, 1), binary_loss, (inputs, (inputs[:, 0] > 0).long()), settings, out=out).folder.path


@pytest.fixture
def run(made, tmp_path):
    return RunFolder(shutil.copytree(made, tmp_path / "run"))


def test_report_remakes_both_pages_and_opens_one(run, answer, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    before = run.report.read_bytes()
    run.report.unlink()
    run.private_report.unlink()
    body = answer("report", run.path, "--open")
    assert run.report.read_bytes() == before
    assert body["runs"][str(run.path)] == {"report": str(run.report), "private": str(run.private_report)}
    assert opened == [run.report.resolve().as_uri()]
    assert answer("verify", run.path)["ok"]


def test_the_published_part_alone_can_be_reported(run, dpsrm):
    shutil.rmtree(run.private)
    result = dpsrm("report", run.path)
    assert result.code == 0
    assert "For yourself" not in result.stdout
    assert not run.private.exists()


def test_another_version_writes_elsewhere(run, dpsrm, tmp_path, monkeypatch):
    """A page that this version words differently never replaces the one that the ledger binds."""
    before = run.report.read_bytes()
    monkeypatch.setattr(published, "VERSION", 2)
    result = dpsrm("report", run.path)
    assert result.code == 2
    assert "--out FOLDER" in result.stderr
    assert run.report.read_bytes() == before
    assert dpsrm("report", run.path, "--out", tmp_path / "new").code == 0
    assert '"version": 2' in (tmp_path / "new" / "statement.json").read_text()
    assert dpsrm("report", run.path, run.path, "--out", tmp_path / "new").code == 2


def test_no_run_and_an_unfinished_run_are_one_line(run, dpsrm, tmp_path):
    assert "folder with a ledger" in dpsrm("report", tmp_path).stderr
    run.ledger.write_bytes(b"".join(run.ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert "unfinished" in dpsrm("report", run.path).stderr


def test_verify_names_a_page_that_lies_though_every_digest_is_right(run, answer, dpsrm):
    """A page edited and bound again, the certificate too: the words are compared with the ledger's."""
    run.report.write_text(run.report.read_text().replace("one record", "one person"))
    bodies = [json.loads(line)["body"] for line in run.ledger.read_text().splitlines()]
    bodies[-1]["files"]["report.html"] = hashlib.sha256(run.report.read_bytes()).hexdigest()
    run.ledger.write_bytes(chained(bodies))
    facts = read_ledger(run.ledger)
    from dpsrm.runs.certificate import prove

    run.certificate.write_text(render(facts, prove(facts, facts.closing), facts.closing))
    bodies[-1]["files"]["certificate.md"] = hashlib.sha256(run.certificate.read_bytes()).hexdigest()
    run.ledger.write_bytes(chained(bodies))
    result = dpsrm("verify", run.path)
    assert result.code == 1
    assert "report.html does not say what the ledger proves" in result.stdout


def test_compare_writes_a_page(run, answer, tmp_path):
    run.write_json(run.private / "metrics.json", {"test": {"auc": 0.75}})
    answer("compare", run.path, run.path, "--page", tmp_path / "compared.html")
    text = (tmp_path / "compared.html").read_text()
    assert text.count("0.7500") == 2
    assert "not for publication" in text
    assert (tmp_path / "compared.html").stat().st_mode & 0o077 == 0


def test_a_run_that_does_not_verify_is_not_shown(run, dpsrm):
    run.certificate.write_text("ε = 0.001")
    told = dpsrm("report", run.path)
    assert told.code == 2
    assert "certificate.md was changed" in told.stderr
    assert "To show to others" not in told.stdout
