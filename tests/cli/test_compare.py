"""`dpsrm compare`: runs side by side, those that do not verify marked, the price of choosing said."""

import random

import pytest


@pytest.fixture
def runs(tmp_path, dpsrm):
    rng = random.Random(0)
    rows = "\n".join(f"{age},{'yes' if age > 50 else 'no'}" for age in (rng.randint(18, 90) for _ in range(400)))
    (tmp_path / "x.csv").write_text("age,ill\n" + rows + "\n")
    given = ["--data", tmp_path / "x.csv", "--test", tmp_path / "x.csv", "--target", "ill", "--delta", "1e-4"]
    for name, epsilon, rate in (("weak", 1, "0.0001"), ("good", 8, "4.0")):
        change = ["--set", f"training.learning_rate={rate}", "--set", "training.steps=20"]
        told = dpsrm("train", *given, "--epsilon", epsilon, "--seed", 1, *change, "--out", tmp_path / name)
        assert told.code == 0, told.stderr
    return tmp_path / "weak", tmp_path / "good"


def test_runs_side_by_side(runs, dpsrm, answer, tmp_path):
    found = answer("compare", *runs, "--plot", tmp_path / "plot.png")
    weak, good = found["runs"]
    assert (weak["run"], good["run"]) == tuple(map(str, runs))
    assert 0.9 < weak["epsilon"] <= 1
    assert 7 < good["epsilon"] <= 8
    assert (weak["learning_rate"], good["learning_rate"], good["steps"]) == (0.0001, 4.0, 20)
    assert weak["verifies"]
    assert found["best"]["log_loss"] == str(runs[1])
    assert found["best"]["auc"] in map(str, runs)
    assert (tmp_path / "plot.png").stat().st_size > 1000
    told = dpsrm("compare", *runs)
    assert told.code == 0
    assert "all of them together cost more" in " ".join(told.stderr.split())
    assert "0.0001" in told.stdout, "what differs is a column"
    assert "in all runs: delta 0.0001, model logistic" in " ".join(told.stdout.split())
    assert weak["half_width"]["log_loss"] > 0
    inside = dpsrm("compare", *runs, "--plot", runs[0] / "plot.png")
    assert inside.code == 2
    assert "keeps it from verifying" in inside.stderr
    assert dpsrm("predict", runs[0], "--data", tmp_path / "x.csv", "--out", runs[0] / "p.csv").code == 2
    assert dpsrm("predict", runs[1], "--data", tmp_path / "x.csv", "--out", runs[0] / "p.csv").code == 2
    assert dpsrm("budget", "init", runs[0] / "b", "--epsilon", 1, "--delta", 1e-5).code == 2
    assert dpsrm("predict", runs[0], "--data", tmp_path / "x.csv", "--out", runs[0] / "private" / "p.csv").code == 0

    (runs[0] / "certificate.md").write_text("forged")
    assert [row["verifies"] for row in answer("compare", *runs)["runs"]] == [False, True]
    (runs[0] / "private" / "metrics.json").unlink()
    (runs[1] / "private" / "metrics.json").unlink()
    assert answer("compare", *runs)["best"] == {}
    refused = dpsrm("compare", *runs, "--plot", tmp_path / "no.png")
    assert refused.code == 2
    assert "runs that were tested" in refused.stderr


def test_what_was_not_typed_is_told(runs, answer, dpsrm, tmp_path, monkeypatch):
    """Batch and steps follow from n; names of runs stay whole in a narrow window."""
    given = ["--data", tmp_path / "x.csv", "--target", "ill", "--epsilon", 8, "--delta", "1e-4", "--method", "sgd"]
    trained = answer("train", *given, "--out", tmp_path / "a-run-with-a-rather-long-name")
    found = answer("compare", trained["run"])["runs"][0]
    assert (found["steps"], found["batch"]) == (trained["steps"], trained["batch"])
    monkeypatch.setattr("dpsrm.cli.compare.out._width", 80)
    told = dpsrm("compare", *runs, trained["run"])
    assert "a-run-with-a-rather-long-name" in told.stdout
