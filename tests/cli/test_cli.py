"""The command line as a new user meets it: the main paths, and one clear line for every mistake."""

import csv
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import SHARED
from dpsrm import load_run, verify
from dpsrm.training import RecordedRun


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A CSV with numbers, categories and missing cells, and a test file like it."""
    folder = tmp_path_factory.mktemp("table")
    rng = random.Random(0)
    for name, rows in (("train.csv", 1500), ("test.csv", 400)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "job", "city", "ill"])
            for _ in range(rows):
                age, job = rng.randint(18, 90), rng.choice(["nurse", "clerk", "miner"])
                ill = rng.random() < (0.85 if job == "miner" else 0.15)
                cells = [rng.choice([age, ""]), job, rng.choice(["A", "B", "?"]), "yes" if ill else "no"]
                writer.writerow(cells)
    return folder


def train_arguments(table, out):
    budget = ["--epsilon", "4", "--delta", "1e-4", "--seed", "7"]
    return ["train", "--data", table / "train.csv", "--target", "ill", *budget, "--out", out]


def test_a_csv_trains_in_one_command_and_the_run_can_be_verified(table, tmp_path, dpsrm, answer):
    body = answer(*train_arguments(table, tmp_path / "run"), "--test", table / "test.csv")
    assert body["epsilon"] <= 4
    assert body["delta"] == 1e-4
    assert body["run"] == str(tmp_path / "run")
    assert body["test"]["error"] < 0.3
    assert body["test"]["auc"] > 0.7
    assert 0 < body["test"]["log_loss"] < 0.69
    assert body["constant"]["auc"] == 0.5
    assert body["test"]["log_loss"] < body["constant"]["log_loss"] < 0.7
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "[preprocessing]" in config
    assert (tmp_path / "run" / "private" / "metrics.json").exists()
    assert not (tmp_path / "run" / "private" / "reference").exists()

    assert repr(verify(tmp_path / "run")).startswith("<Verification: ok, ε=")
    assert repr(load_run(tmp_path / "run")).startswith(f"<LoadedRun {tmp_path / 'run'}: ε=")
    checked = answer("verify", tmp_path / "run")
    assert checked["ok"]
    assert checked["epsilon"] == body["epsilon"]
    assert checked["head"] == body["head"]
    assert (checked["unit"], checked["isolation"], checked["engine"]) == ("one record", "alone", "linear")
    told = dpsrm("verify", tmp_path / "run", "--expect", body["head"])
    assert told.code == 0
    assert "expected head" in told.stdout
    assert dpsrm("verify", tmp_path / "run", "--expect", "0" * 64).code == 1
    ledger = tmp_path / "run" / "ledger.jsonl"
    raw = bytearray(ledger.read_bytes())
    raw[len(raw) // 2] ^= 1
    ledger.write_bytes(bytes(raw))
    result = dpsrm("verify", tmp_path / "run", "--json")
    assert result.code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert "ledger" in repr(verify(tmp_path / "run"))


def test_a_model_that_learned_nothing_is_told(table, tmp_path, dpsrm):
    """It is compared with always the same answer; a rare class makes any model look good."""
    given = [*train_arguments(table, tmp_path / "run"), "--test", table / "test.csv"]
    good = dpsrm(*given)
    assert "constant: always the same answer" in good.stderr
    assert "no better" not in good.stderr
    bad = dpsrm(*given, "--overwrite", "--set", "training.steps=1", "--set", "training.learning_rate=500")
    assert "The model's log-loss is no better than that" in bad.stderr


def test_the_chain_head_is_told_in_one_line(table, tmp_path, dpsrm, answer):
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--set", "training.epochs=1")
    head = answer("verify", tmp_path / "run")["head"]
    assert any(line.endswith(f": {head}") for line in told.stdout.splitlines())


def test_a_config_file_gives_the_same_run_again(table, tmp_path, answer):
    first = answer(*train_arguments(table, tmp_path / "a"), "--seed", 1, "--set", "training.epochs=2")
    again = answer("train", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert again["epsilon"] == first["epsilon"]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]


def test_a_schema_trains_too(table, tmp_path, answer):
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nkind = "number"\nmin = 18\nmax = 90\n'
        '[columns.job]\nkind = "category"\nvalues = ["nurse", "clerk", "miner"]\n'
        '[columns.city]\nkind = "ignore"\n[target]\ncolumn = "ill"\nclasses = ["no", "yes"]\n'
    )
    body = answer(
        *train_arguments(table, tmp_path / "run"), "--schema", tmp_path / "schema.toml", "--test", table / "test.csv"
    )
    assert body["test"]["error"] < 0.25


def test_a_reference_is_trained_only_on_request(table, tmp_path, answer):
    body = answer(*train_arguments(table, tmp_path / "run"), "--test", table / "test.csv", "--reference")
    assert body["reference"]["error"] < 0.3
    assert (tmp_path / "run" / "private" / "reference").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--epsilon", "0"], ["epsilon", "0"]),
        (["--epsilon", "-1"], ["epsilon", "-1"]),
        (["--epsilon", "nan"], ["epsilon", "nan"]),
        (["--delta", "0"], ["delta", "0"]),
        (["--delta", "1"], ["delta", "1"]),
        (["--set", "training.batch=5000"], ["batch", "5000", "1500"]),
        (["--target", "illness"], ["illness", "age", "job"]),
        (["--method", "magic"], ["magic", "srm"]),
        (["--data", "nowhere.csv"], ["nowhere.csv"]),
        (["--data", "."], ["folder", "ImageFolder"]),
        (["--budget", "nowhere.budget"], ["no such budget", "nowhere.budget", "dpsrm budget init FILE"]),
        (["--schema", "nowhere.toml"], ["nowhere.toml"]),
        (["--set", "training.batch"], ["section.name=value"]),
        (["--set", "training.speed=9"], ["speed", "batch"]),
        (["--classes", "sick,well"], ["sick", "correct the cell, or add it to --classes"]),
        (["--seed", "-3"], ["seed", "-3"]),
    ],
)
def test_bad_input_is_one_line_exit_2_and_leaves_nothing(table, tmp_path, changes, words, dpsrm):
    result = dpsrm(*train_arguments(table, tmp_path / "run"), *changes)
    assert result.code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("inf.csv", "a,y\n1,0\ninf,1\n", ["inf"]),
        ("ragged.csv", "a,y\n1,0\n1,0,1\n", ["3"]),
        ("empty.csv", "", []),
        ("labels.csv", "a,y\n1,maybe\n", ["maybe", "--classes"]),
        ("table.txt", "a,ill\n1,0\n", ["name the file .csv"]),
        ("svm.txt", "+1 1:0.5 0:2\n", []),
        ("svm.txt", "+1 1:inf\n", ["inf"]),
        ("noise.txt", "\x00\x01\x02", []),
    ],
)
def test_bad_files_are_one_line_exit_2(tmp_path, name, text, words, dpsrm):
    (tmp_path / name).write_text(text)
    target = ["--target", text.splitlines()[0].split(",")[-1] if text else "y"] if "svm" not in name else []
    result = dpsrm(
        "train", "--data", tmp_path / name, *target, "--epsilon", 1, "--delta", 1e-5, "--out", tmp_path / "run"
    )
    assert result.code == 2
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not (tmp_path / "run").exists()


def test_training_asks_for_records(dpsrm):
    result = dpsrm("train", "--target", "y", "--epsilon", 1, "--delta", 1e-5)
    assert (result.code, result.stderr) == (2, "dpsrm: there must be records to train on; give --data FILE\n")


def test_a_folder_may_have_any_name(table, tmp_path, dpsrm, monkeypatch):
    """What looks like markup is shown as it is, and does not stop the command after training."""
    monkeypatch.chdir(tmp_path)
    result = dpsrm(*train_arguments(table, "x[/b]"), "--set", "training.steps=2")
    assert result.code == 0, result.stderr
    assert "Run folder: x[/b] (publishable" in result.stdout


def test_text_in_a_number_column_of_the_schema(table, tmp_path, dpsrm):
    (tmp_path / "schema.toml").write_text(
        '[columns.age]\nkind = "number"\nmin = 0\nmax = 99\n[columns.job]\nkind = "number"\nmin = 0\nmax = 1\n'
        '[columns.city]\nkind = "ignore"\n'
    )
    result = dpsrm(*train_arguments(table, tmp_path / "run"), "--schema", tmp_path / "schema.toml")
    assert result.code == 2
    assert "job" in result.stderr
    assert any(job in result.stderr for job in ("nurse", "clerk", "miner"))


def test_an_existing_run_needs_overwrite(table, tmp_path, dpsrm):
    arguments = [*train_arguments(table, tmp_path / "run"), "--set", "training.epochs=1"]
    assert dpsrm(*arguments).code == 0
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    result = dpsrm(*arguments)
    assert result.code == 2
    assert "--overwrite" in result.stderr
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before
    assert dpsrm(*arguments, "--overwrite").code == 0


ACCOUNT = ["account", "--n", 50000, "--batch", 256, "--steps", 2000, "--delta", 1e-5, "--accountant", "rdp"]
WOR = ["--sampling", "wor"]


def test_account_golden(answer):
    """accounting.md §2: dp-accounting's RDP for WOR, s = 1 → 2.4533."""
    assert answer(*ACCOUNT, *WOR, "--noise", 1)["epsilon"] == pytest.approx(2.4533, abs=5e-5)


def test_calibrate_golden(answer):
    """accounting.md §2: ε = 2 needs s = 1.2110."""
    body = answer("calibrate", *ACCOUNT[1:], *WOR, "--epsilon", 2)
    assert body["noise_multiplier"] == pytest.approx(1.2110, rel=1e-3)
    assert body["epsilon"] <= 2


def test_the_papers_accountant_gives_no_number_where_its_conditions_fail(answer, dpsrm):
    """s² < 0.7 breaks its lemma; on a9a with b = 50 no noise at all reaches ε = 0.2 within its conditions."""
    a9a = ["--n", 32561, "--batch", 50, "--steps", 2605, "--delta", 1e-5, "--accountant", "paper", *WOR]
    body = answer("account", *a9a, "--noise", 0.8)
    assert body["epsilon"] is None
    assert body["reason"]
    result = dpsrm("calibrate", *a9a, "--epsilon", 0.2)
    assert result.code == 2
    assert "condition" in result.stderr


GOLDEN_PLD = [
    (32561, 50, 1.5, 2605, 0.23797),
    (32561, 200, 3, 814, 0.22203),
    (60000, 512, 0.9, 1172, 2.5193),
    (50000, 128, 0.6, 6800, 5.4546),
    (50, 1, 8, 500, 0.19105),
]


@pytest.mark.parametrize(("n", "batch", "noise", "steps", "epsilon"), GOLDEN_PLD)
def test_pld_golden(answer, n, batch, noise, steps, epsilon):
    """accounting.md §2, to four digits; the explicit attack lies below."""
    sizes = ["--n", n, "--batch", batch, "--steps", steps, "--noise", noise, "--delta", 1e-5]
    body = answer("account", *sizes, "--sampling", "wor", "--adjacency", "replace-one", "--accountant", "pld")
    assert body["epsilon"] == pytest.approx(epsilon, rel=1e-4)
    assert 0.8 * epsilon < body["lower_bound"] < body["epsilon"]
    assert body["error_budget"] < 1e-9


def test_infinity_is_a_word_not_a_number(answer):
    body = answer("account", "--n", 100, "--batch", 50, "--steps", 10**6, "--noise", 0.01, "--delta", 1e-5)
    assert body["epsilon"] == "inf"
    assert body["holds"] is False
    assert body["reason"]


THEORY = ("--dimension", 10, "--lipschitz", 1, "--smoothness", 0.252, "--gap", 0.6931)


def test_plan_shows_what_the_theorems_promise(answer, dpsrm, tmp_path):
    goal = ["plan", "--theory", "--n", 100_000, "--epsilon", 1, "--delta", 1e-5]
    body = answer(*goal, *THEORY, "--plot", tmp_path / "rates.png")
    names = [rate["algorithm"] for rate in body["rates"]]
    assert names == ["DP-SRM", "DP-SRM, corollary's batches", "DP-GD", "RRPSGD"]
    assert all(0 < rate["utility"] < 1 and rate["gradients"] > 1e6 for rate in body["rates"])
    assert body["corollary_steps"] == 29213697
    assert body["best_beta"] == {"DP-SRM": None, "DP-SRM, corollary": None}
    ahead = {(pair["leader"], pair["rival"]): pair for pair in body["ahead"]}
    assert ahead["DP-SRM", "DP-GD"]["from_n"] == pytest.approx(4.6e9, rel=0.03)
    assert any("qα(1+s²) < 1" in text for text in ahead["DP-SRM", "DP-GD"]["failed_there"])
    assert ahead["DP-SRM, corollary", "DP-GD"]["from_n"] is None
    assert (tmp_path / "rates.png").stat().st_size > 1000
    only = answer(*goal, *THEORY, "--batches", "corollary")
    assert [rate["algorithm"] for rate in only["rates"]] == names[1:]
    shown = dpsrm(*goal, *THEORY)
    assert "T = 29213697" in shown.stdout
    incomplete = dpsrm(*goal, "--dimension", 10)
    assert incomplete.code == 2
    assert "--lipschitz, --smoothness, --gap" in incomplete.stderr


def test_plan_compares_choices_and_draws_them(answer, dpsrm, tmp_path):
    goal = ["plan", "--n", 5000, "--epsilon", 1, "--delta", 1e-5, "--batches", "100,1000", "--accountants", "all"]
    body = answer(*goal, "--plot", tmp_path / "plan.png", "--tries", 5)
    noise = {(r["batch"], r["sampling"], r["accountant"]): r["noise_multiplier"] for r in body["rows"]}
    for batch in (100, 1000):
        assert noise[batch, "poisson", "pld"] < noise[batch, "wor", "pld"] < noise[batch, "wor", "rdp"]
        assert noise[batch, "poisson", "paper"] is None
    assert body["selection"]["epsilon"] > 1
    assert (tmp_path / "plan.png").stat().st_size > 1000
    assert dpsrm(*goal, "--batches", "6000").code == 2
    assert dpsrm(*goal, "--batches", "some").code == 2


@pytest.mark.parametrize(
    "changes",
    [
        ["--noise", 0],
        ["--noise", -1],
        ["--noise", "nan"],
        ["--noise", 1, "--delta", 2],
        ["--noise", 1, "--batch", 60000],
    ],
)
def test_account_refuses_nonsense(changes, dpsrm):
    result = dpsrm(*ACCOUNT, *changes)
    assert result.code == 2
    assert "Traceback" not in result.stderr


def test_methods_and_help(dpsrm, answer):
    assert "srm" in [row["name"] for row in answer("methods")["methods"]]
    for command in ("demo", "train", "plan", "account", "calibrate", "verify", "methods"):
        result = dpsrm(command, "--help")
        assert result.code == 0
        assert "Example" in result.stdout


def test_the_installed_command_fails_in_one_line_with_exit_code_2(tmp_path):
    command = [Path(sys.executable).parent / "dpsrm", "verify", tmp_path / "nothing"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("dpsrm: ")
    assert "Traceback" not in result.stderr


def test_accounting_commands_do_not_load_torch():
    code = "import sys; import dpsrm.cli.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark datasets are not beside this checkout")
def test_one_pass_of_a9a(tmp_path, answer):
    subprocess.run([SHARED / "data" / "prepare", tmp_path / "data", "a9a"], check=True, capture_output=True)
    files = tmp_path / "data" / "a9a"
    body = answer(
        "train",
        "--data",
        files / "a9a",
        "--test",
        files / "a9a.t",
        "--epsilon",
        1,
        "--delta",
        1e-5,
        "--seed",
        1,
        "--set",
        "data.features=123",
        "--set",
        "training.epochs=1",
        "--set",
        "training.batch=500",
        "--out",
        tmp_path / "run",
    )
    assert body["steps"] == 65
    assert body["test"]["error"] < 0.2
    assert body["test"]["auc"] > 0.85
    shutil.rmtree(tmp_path / "data")


def interrupt_training(monkeypatch, step, *, compiled=False):
    """Make the next training in this process die after `step`, as Ctrl-C would (in compiled code, or elsewhere)."""
    real = RecordedRun.advance

    def dying(run, *args):
        progress = real(run, *args)
        if progress is not None and progress.step == step:
            if compiled:
                raise SystemError("returned a result with an exception set") from KeyboardInterrupt()
            raise KeyboardInterrupt
        return progress

    monkeypatch.setattr(RecordedRun, "advance", dying)


def test_an_interrupted_run_is_resumed_by_one_command(table, tmp_path, dpsrm, answer, monkeypatch):
    options = ["--seed", 1, "--test", table / "test.csv", "--set", "performance.checkpoint_steps=5"]
    options += ["--set", "training.epochs=2"]
    whole = answer(*train_arguments(table, tmp_path / "whole"), *options)
    with monkeypatch.context() as patch:
        interrupt_training(patch, 12)
        stopped = dpsrm(*train_arguments(table, tmp_path / "run"), *options)
        assert stopped.code != 0
        assert f"dpsrm train --resume {tmp_path / 'run'}" in stopped.stderr
        assert "Training with srm" in stopped.stderr
    refused = dpsrm("train", "--resume", tmp_path / "run", "--epsilon", "9")
    assert refused.code == 2
    assert "--epsilon" in refused.stderr
    told = dpsrm("train", "--resume", tmp_path / "run", "--json")
    assert f"Going on with {tmp_path / 'run'}" in told.stderr
    assert "Training with" not in told.stderr
    assert json.loads(told.stdout)["test"] == whole["test"]
    names = ("model.safetensors", "ledger.jsonl", "certificate.md", "config.toml")
    assert all((tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)
    again = dpsrm("train", "--resume", tmp_path / "run")
    assert again.code == 2
    assert "finished" in again.stderr


def test_commands_to_copy_are_quoted_and_a_seed_is_told(table, tmp_path, dpsrm):
    told = dpsrm(*train_arguments(table, tmp_path / "my run"), "--set", "training.epochs=1")
    assert f"dpsrm report '{tmp_path / 'my run'}' --open" in told.stderr
    assert "Not private: whoever knows the seed" in told.stderr


def test_what_is_no_config_and_what_is_no_run_is_said(table, tmp_path, dpsrm):
    assert f"for records: --data {table / 'train.csv'}" in dpsrm("train", table / "train.csv").stderr
    assert "a run is a folder" in dpsrm("train", "--resume", tmp_path / "none").stderr
    near = dpsrm("train", "--data", table / "trian.csv").stderr
    assert f"did you mean {table / 'train.csv'}?" in near
    (tmp_path / "a.toml").write_text('[data]\npath = "x.csv"\n[privacy]\nepsilon = "1"\ndelta = 1e-5\n')
    assert "privacy.epsilon must be a number" in dpsrm("train", tmp_path / "a.toml").stderr
    assert "contradict each other" in dpsrm("train", tmp_path / "a.toml", "--set", "private=false").stderr


@pytest.mark.parametrize("number", ["7", "0"])
def test_a_resumed_run_refuses_every_setting_by_the_name_of_its_option(tmp_path, dpsrm, number):
    names = ["data", "test", "target", "schema", "classes", "task", "target-range", "epsilon", "delta", "unit"]
    names += ["rows-per-unit", "budget", "method", "seed", "out", "set"]
    given = [word for name in names for word in (f"--{name}", number)]
    refused = dpsrm("train", "config.toml", "--resume", tmp_path, "--overwrite", "--reference", *given)
    assert refused.code == 2
    assert f"given={['--config', *(f'--{name}' for name in names)]}" in refused.stderr


def test_an_interrupt_inside_compiled_code_is_one(table, tmp_path, dpsrm, monkeypatch):
    interrupt_training(monkeypatch, 3, compiled=True)
    stopped = dpsrm(*train_arguments(table, tmp_path / "run"))
    assert stopped.code == 130
    assert stopped.stderr.rstrip().splitlines()[-1].startswith("to go on with this run: dpsrm train --resume")


def test_runs_share_a_budget(table, tmp_path, dpsrm, answer):
    budget = tmp_path / "visits.budget"
    fresh = answer("budget", "init", budget, "--epsilon", "5", "--delta", "1e-4")
    assert fresh["spent"] == 0
    assert fresh["remaining"] == 5
    first = answer(*train_arguments(table, tmp_path / "a"), "--budget", budget, "--reference")
    after = answer("budget", "show", budget)
    assert first["epsilon"] < after["spent"] < 5
    assert "earlier results" in after["composition"]
    assert 0 < after["share"] < 1
    assert after["runs"][0]["state"] == "finished"
    assert after["runs"][0]["charged"] == after["runs"][0]["reserved"]
    refused = dpsrm(*train_arguments(table, tmp_path / "b"), "--budget", budget)
    assert refused.code == 2
    assert "shared budget" in refused.stderr
    assert not (tmp_path / "b").exists()
    shown = dpsrm("budget", "show", budget)
    assert "remains" in shown.stdout
    assert "of the room is taken; runs like the last one that still fit: 0." in " ".join(shown.stdout.split())
    budget.write_bytes(budget.read_bytes().splitlines(keepends=True)[0])
    older = dpsrm("budget", "show", budget)
    assert older.code == 2
    assert "older than what was reserved" in " ".join(older.stderr.split())
    assert dpsrm("budget", "init", budget, "--epsilon", "5", "--delta", "1e-4").code == 2
    assert dpsrm("budget", "show", tmp_path / "none").code == 2


def test_predictions_do_not_replace_files_unasked(table, tmp_path, dpsrm):
    assert dpsrm(*train_arguments(table, tmp_path / "run")).code == 0
    records = tmp_path / "records.csv"
    shutil.copy(table / "test.csv", records)
    before = records.read_bytes()
    for given in ([], ["--overwrite"]):
        told = dpsrm("predict", tmp_path / "run", "--data", records, "--out", tmp_path / "." / "records.csv", *given)
        assert (told.code, records.read_bytes()) == (2, before)
        assert "--out must not be the file of records" in told.stderr
    other = tmp_path / "there.csv"
    other.write_text("precious")
    refused = dpsrm("predict", tmp_path / "run", "--data", records, "--out", other)
    assert (refused.code, other.read_text()) == (2, "precious")
    assert "--overwrite" in refused.stderr
    assert dpsrm("predict", tmp_path / "run", "--data", records, "--out", other, "--overwrite").code == 0
    assert other.read_text().startswith("prediction")


def test_an_existing_folder_is_refused_before_data_is_read(tmp_path, dpsrm):
    (tmp_path / "run").mkdir()
    budget = ["--epsilon", 1, "--delta", 1e-5, "--out", tmp_path / "run"]
    (tmp_path / "no-table.csv").touch()
    told = dpsrm("train", "--data", tmp_path / "no-table.csv", "--target", "y", *budget)
    assert told.code == 2
    assert "--overwrite" in told.stderr
    assert "0/?" not in told.stderr


def test_errors_say_which_file_or_column_is_meant(table, tmp_path, dpsrm):
    (tmp_path / "later.csv").write_text("age,job,ill\n31,nurse,yes\n")
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--test", tmp_path / "later.csv")
    assert told.code == 2
    assert f"the file of --test, {tmp_path / 'later.csv'}: " in told.stderr
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--unit", "ill")
    assert "unit and target must be two columns" in told.stderr
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--set", "training.batch=5000")
    assert "got batch=5000, n=1500" in told.stderr
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--target-range", "1000,0")
    assert "got '1000,0'" in told.stderr
    assert "0/?" not in told.stderr, "no bar before the first step"


def test_no_bar_before_the_first_step(table, tmp_path, dpsrm):
    told = dpsrm(*train_arguments(table, tmp_path / "run"), "--set", "training.batch=5000")
    assert told.code == 2
    assert "━" not in told.stderr
