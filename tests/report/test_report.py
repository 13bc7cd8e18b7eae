"""The pages of a run: everything a report must say, nothing private, the same bytes again, one file without network."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from torch import nn

import dpsrm as package
from dpsrm.core.errors import InputError, LedgerError
from dpsrm.data import Records
from dpsrm.gradients import binary_loss
from dpsrm.methods import Agd, Sgd
from dpsrm.report import differing, documents, read_facts, write_private_report
from dpsrm.report.attack import Attack, attack_on, epsilon_over_run
from dpsrm.report.checklist import UNSAID, Item, checklist
from dpsrm.report.operator import Journal, advice, read_journal
from dpsrm.report.page import Axis, Chart, Curve
from dpsrm.runs import RunFolder, verify
from dpsrm.training import Privacy, Settings, Statement, Training, train

STATEMENT = Statement(purpose="to plan <b>visits</b>", contact="dpo@example.org", license="cc-by-4.0")
SAID = ("report.html", "statement.json", "model_card.md")


def records(first=0.0):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 4, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    inputs[7] = first
    return Records(inputs, targets)


def go(out, data=None, *, method=None, unit=None, **privacy):
    promise = {"epsilon": 1.0, "delta": 1e-5, **privacy}
    settings = Settings(
        privacy=Privacy(**promise) if promise["epsilon"] else None,
        method=method or Sgd(),
        training=Training(batch=None if method and method.adaptive else 20, steps=12, learning_rate=0.5),
        record="one visit",
        seed=3,
        statement=STATEMENT,
    )
    module = nn.Linear(4, 1)
    nn.init.ones_(module.weight)
    nn.init.ones_(module.bias)
    return train(module, binary_loss, data or records(), settings, out=out, unit=unit)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return go(tmp_path_factory.mktemp("report") / "run").folder


class Page(HTMLParser):
    """The text of a page; every tag must be closed, nothing may be loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.tags = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert not {"src", "href", "onclick", "onload"} & set(dict(attrs))
        assert tag not in ("script", "link", "iframe", "object")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(self.words)


def test_the_page_says_every_item_and_what_the_operator_did_not(run):
    facts = read_facts(run)
    page = Page(run.report.read_text())
    found = [item for group in checklist(facts).values() for item in group]
    assert len(found) > 25
    for item in found:
        assert item.text in page.text, item.key
    assert page.text.count(UNSAID) == 5
    assert "to plan <b>visits</b>" in page.text, "escaped, as words"
    assert "one visit" in page.text
    assert facts.ledger.charged[1] in page.text
    assert "url(" not in run.report.read_text()
    assert sum(tag == "svg" for tag, _ in page.tags) == 3


def test_the_statement_and_the_card_say_the_same(run):
    said, card = json.loads(run.statement.read_text()), run.card.read_text()
    guarantee = verify(run.path).guarantee
    assert (said["epsilon"], said["delta"], said["unit"]) == (guarantee.epsilon, 1e-5, "one visit")
    assert said["items"]["statement_source"] is None
    assert said["items"]["statement_contact"] == "dpo@example.org"
    assert card.startswith('---\nlibrary_name: dpsrm\nlicense: "cc-by-4.0"\ntags:\n')
    for head in ("Model Details", "Uses", "Bias, Risks, and Limitations", "Training Details", "Evaluation"):
        assert f"\n## {head}\n" in card
    assert "&lt;b>visits" in card


def test_a_card_holds_no_markup_of_others(tmp_path):
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5), training=Training(batch=20, steps=2), record="one <img src=x>", seed=3
    )
    card = train(nn.Linear(4, 1), binary_loss, records(), settings, out=tmp_path / "run").folder.card.read_text()
    assert "&lt;img src=x>" in card
    assert "<img" not in card


def test_the_pages_are_made_again_to_the_byte_and_are_bound(run, tmp_path):
    assert differing(run) == ([], package.__version__)
    assert {name: (run.path / name).read_bytes() for name in SAID} == documents(read_facts(run))
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    write_private_report(copy)
    assert verify(copy.path).ok
    copy.report.write_text(copy.report.read_text().replace("one visit", "one person"))
    assert differing(copy)[0] == ["report.html"]
    assert verify(copy.path).problems == ("report.html was changed: it is not the one the ledger was closed with",)


def test_neighbours_give_equal_pages_where_theta_is_equal(tmp_path):
    """The same seed, one record replaced, clips so small that θ stays 1 to the last bit: all pages are equal."""
    tiny = Sgd(max_grad_norm=1e-100)
    one = go(tmp_path / "one", records(0.0), method=tiny).folder
    two = go(tmp_path / "two", records(5.0), method=tiny).folder
    names = sorted(path.name for path in one.path.iterdir() if path.is_file())
    assert set(SAID) < set(names)
    for name in names:
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name
    assert one.private_report.read_bytes() != two.private_report.read_bytes(), "the operator's page tells them apart"


def test_neighbours_give_equal_pages_though_theta_differs(run, tmp_path):
    other = go(tmp_path / "other", records(5.0)).folder
    assert other.model.read_bytes() != run.model.read_bytes()
    for name in SAID:
        assert (run.path / name).read_bytes() == (other.path / name).read_bytes()


def test_private_figures_are_in_the_operators_page_alone(run):
    journal, private = read_journal(run), Page(run.private_report.read_text())
    assert run.private_report.stat().st_mode & 0o077 == 0
    assert len(journal.loss) == len(journal.signal) == 12
    assert set(journal.clipped) == {"gradient"}
    assert "not for publication" in private.text.lower()
    loss = f"{journal.loss[3][1]:.3g}"
    assert f"{journal.loss[3][1]:.6f}"[:8] not in run.report.read_text()
    assert loss
    assert sum(tag == "svg" for tag, _ in private.tags) == 4


@pytest.mark.parametrize(
    ("clipped", "signal", "word"),
    [(0.95, 1.0, "raise max_grad_norm"), (0.0, 1.0, "lower max_grad_norm"), (0.5, 0.01, "larger batches")],
)
def test_advice_follows_the_curves(clipped, signal, word):
    steps = [(float(k), 1.0) for k in range(30)]
    journal = Journal(
        loss=steps,
        clipped={"gradient": [(x, clipped) for x, _ in steps]},
        signal=[(x, signal) for x, _ in steps],
        metrics={"test": {"auc": 0.9}},
    )
    (line,) = advice(journal)
    assert word in line


def test_a_run_without_privacy_says_so(tmp_path):
    folder = go(tmp_path / "run", epsilon=None).folder
    page = Page(folder.report.read_text())
    assert "no privacy guarantee" in page.text
    assert "**No privacy guarantee.**" in folder.card.read_text()
    assert json.loads(folder.statement.read_text())["epsilon"] is None


def test_an_adaptive_run_has_a_page(tmp_path):
    folder = go(tmp_path / "run", method=Agd(candidates=2), sampling="full").folder
    page = Page(folder.report.read_text())
    assert "zCDP filter" in page.text
    assert epsilon_over_run(read_facts(folder)) == []


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_pages_of_a_run_that_protects_persons_count_persons(tmp_path, adjacency):
    """They called 67 persons the records, neighbours one record, and said that a person's rows are not protected."""
    folder = go(
        tmp_path / "run", unit=[row // 3 for row in range(200)], rows_per_unit=2, adjacency=adjacency, epsilon=3.0
    ).folder
    said = json.loads(folder.statement.read_text())
    assert [set(each) & {"records", "units"} for each in said["releases"]] == [{"units"}]
    items = said["items"]
    assert "of 67 units" in items["releases"]
    assert items["records"] == "67 (public, see above), of whose rows at most 2 count at a time."
    assert items["adjacency"].startswith(("Replace-one: one unit, with all its rows", "Add-remove: one unit, with all"))
    for text in (folder.report.read_text(), folder.card.read_text(), folder.statement.read_text()):
        assert "Several records of one person" not in text
        assert "umber of records" not in text
        assert "67 records" not in text
        assert "one record" not in text
        assert "how many anyone has is protected" in text


def test_the_pages_say_when_it_was_decided_what_to_release(run, tmp_path):
    assert "planned before it began;" in json.loads(run.statement.read_text())["items"]["query_model"]
    adaptive = json.loads(go(tmp_path / "run", method=Agd()).folder.statement.read_text())["items"]
    assert "chosen as it went" in adaptive["query_model"]
    assert "Every noisy sum and every noisy choice" in adaptive["accesses"]


def test_an_unfinished_run_has_nothing_to_report(run, tmp_path):
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    lines = copy.ledger.read_bytes().splitlines(keepends=True)
    copy.ledger.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="unfinished"):
        read_facts(copy)


def test_a_broken_model_file_is_one_line(run, tmp_path):
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    copy.model.write_bytes(b"\xff" * 4)
    with pytest.raises(InputError, match="safetensors"):
        read_facts(copy)


def test_the_statement_is_a_text():
    with pytest.raises(InputError, match=r"statement\.purpose"):
        Statement(purpose="x" * 5000)
    assert package.Statement is Statement


def gaussian_attack(mu, epsilons):
    """δ(ε) of the Gaussian mechanism."""
    from dpsrm.accounting.guarantee import gaussian_delta

    return Attack(epsilons, [gaussian_delta(1 / mu, epsilon) for epsilon in epsilons])


def test_the_attackers_curve_is_above_the_best_test_and_near_it():
    """For one Gaussian the best test has TPR = Φ(Φ⁻¹(FPR) + μ): the bound may not be below it (Dong, Roth & Su)."""
    from scipy.stats import norm

    mu = 0.8
    attack = gaussian_attack(mu, [0.05 * k for k in range(80)])
    for rate in (1e-3, 1e-2, 0.1, 0.5):
        best = norm.cdf(norm.ppf(rate) + mu)
        assert best <= attack.true_positives(rate) <= 1.02 * best
    assert attack.accuracy == pytest.approx(norm.cdf(mu / 2), abs=1e-9)


def test_the_posterior_bound_is_above_the_truth():
    """The log-odds of a Gaussian are N(μ²/2, μ²)."""
    from scipy.stats import norm

    mu = 0.8
    attack = gaussian_attack(mu, [0.05 * k for k in range(80)])
    for belief in (0.6, 0.8, 0.9):
        odds = math.log(belief / (1 - belief))
        truth = norm.sf((odds - mu * mu / 2) / mu)
        assert truth <= attack.exceeds(belief) <= 1
    assert attack.exceeds(0.97) < 0.2


def test_the_attack_is_that_of_the_runs_own_accountant(run):
    attack, facts = attack_on(read_facts(run)), read_facts(run)
    assert (facts.guarantee.epsilon, facts.guarantee.delta) in list(zip(attack.epsilons, attack.deltas, strict=True))
    assert list(attack.deltas) == sorted(attack.deltas, reverse=True)
    curve = epsilon_over_run(facts)
    assert curve[-1] == (12.0, pytest.approx(facts.guarantee.epsilon))
    assert [epsilon for _, epsilon in curve] == sorted(epsilon for _, epsilon in curve)


def test_a_chart_names_its_curves_and_keeps_them_apart():
    axis = Axis(label="x", low=0.0, high=1.0)
    curves = [Curve(name=f"curve {k}", points=[(0.0, 0.5), (1.0, 0.5)], band=[0.1, 0.1]) for k in range(3)]
    text = Chart(name="a", title="T", alternative="A", x=axis, y=axis, curves=curves).render()
    heights = [float(y) for y in re.findall(r'y="([\d.]+)" class="c\d"', text)]
    assert len(heights) == 3
    assert min(b - a for a, b in pairwise(heights)) >= 14
    assert "<desc" in text
    assert 'role="img"' in text


def test_items_are_plain_facts():
    assert Item("a", "b", "c").said


def test_the_guides_statement_is_read(tmp_path):
    """The section in docs/run-report.md, word by word."""
    import tomllib

    from dpsrm.training.config import settings_from
    from packages import ROOT

    (block,) = re.findall(r"\n\n((?:    .*\n)+)", (ROOT / "docs" / "run-report.md").read_text())
    section = tomllib.loads("\n".join(line[4:] for line in block.splitlines()))
    settings = settings_from({"private": False, **section})
    assert settings.statement.license == "cc-by-4.0"
    assert all(vars(settings.statement).values())
