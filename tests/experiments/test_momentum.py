"""docs/does-it-help.md: its numbers are those of the committed results, and the results those of the accountant."""

import json
import re
from pathlib import Path

import pytest
import torch

from dpsrm.core.events import Scheme
from dpsrm.data import Records
from dpsrm.experiments import sweep
from dpsrm.experiments.flow import METHODS, cells, flow_recipe, flow_row, keep_flow, missing_cells, read_flow
from dpsrm.experiments.lab import Lab
from dpsrm.experiments.logistic import Logistic
from dpsrm.experiments.momentum import draw_noise, extra_factor, noise_row, read_noise
from dpsrm.experiments.ratios import ratio
from dpsrm.experiments.remark import Setting, needed_noise
from dpsrm.experiments.reproduction import Reproduction, Wanted
from dpsrm.experiments.sweep import EPSILONS, RATES, TRIALS, sweep_recipes, sweep_rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "does-it-help.md").read_text()


@pytest.fixture
def told(dpsrm, tmp_path):
    where = ("--results", ROOT / "results", "--docs", tmp_path)
    done = dpsrm("reproduce", "does-it-help", "--from-results", *where, "--json")
    assert done.code == 0, done.stderr
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        f"help-{name}.{kind}" for name in ("noise", "flow", "sweep", "gains") for kind in ("png", "svg")
    }
    return json.loads(done.stdout)


def test_the_pages_noise_is_that_of_the_results(told):
    lines = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    wanted = [
        f"| {row['batch']} | {row['wor']:.3f} | {row['poisson']:.3f} | {row['entered_wor']:.2f} "
        f"| {row['entered_poisson']:.2f} |"
        for row in told["noise"]
    ]
    assert lines == wanted


def test_the_pages_gains_are_those_of_the_results(told):
    features = {"features-mnist": "MNIST features", "features-fashion-mnist": "Fashion-MNIST features"}
    features["features-cifar10"] = "CIFAR-10 features"
    wanted = set()
    for problem, found in told["gains"].items():
        for cell in found:
            sampling = {"wor": "WOR", "poisson": "Poisson"}[cell["sampling"]]
            texts = [_text(cell["gain"].get(name)) for name in ("DP-SRM", "DP-SGD momentum")]
            name = features.get(problem) or cell["model"] or problem
            wanted.add(" | ".join([f"| {name}, ε = {cell['epsilon']:g}", sampling, *texts]) + " |")
    found = {line for line in PAGE.splitlines() if re.match(r"\| .*, ε = ", line)}
    assert {re.sub(r"\|\s+\|", "|  |", line.replace("**", "")) for line in found} == wanted
    bold = [line for line in found for part in line.split("|") if "**" in part]
    assert all("**−" in line for line in bold)


def test_against_half_the_step_one_trial_of_thirty_comes_as_far():
    lab = Lab(ROOT / "results", ROOT / "results")
    recipes = Reproduction(problem="cifar10-cnn6", lab=lab).recipes(Wanted(epsilons=(8.0,), samplings=("poisson",)))
    reached, trials = [], 0
    for model in ("CNN6 relu", "CNN6 tanh"):
        rows = {recipe.label: lab.read("cifar10-cnn6", recipe) for recipe in recipes if recipe.model == model}
        for form in ("DP-SRM", "DP-SRM relative", "DP-SRM joint"):
            costs = [ratio(rows[form], rows["DP-SGD, half step"], cost) for cost in ("steps", "seconds")]
            trials += costs[0].trials
            reached += [(round(costs[0].mean, 2), round(costs[1].mean, 2))] * costs[0].reached
    assert (reached, trials) == ([(0.79, 1.11)], 30)
    assert "one trial of thirty comes as far as its mean error, after 0.79\nof its iterations and 1.11" in PAGE


def test_the_pages_iterations_and_times_are_those_of_the_results():
    """Those of CNN6 at ε = 8 against DP-SGD as tuned: two lines of two rows, one of one."""
    work = Reproduction(problem="cifar10-cnn6", lab=Lab(ROOT / "results", ROOT / "results"))
    rows = {(r.method, r.model, r.sampling): r for r in work.rows(work.recipes(Wanted(epsilons=(8.0,))))}
    tanh, relu, wor = ("CNN6 tanh", "poisson"), ("CNN6 relu", "poisson"), ("CNN6 tanh", "wor")
    for name, method, places in (
        ("DP-SRM by parts, tanh; ReLU", "DP-SRM", (tanh, relu)),
        ("DP-SRM relative, tanh; WOR, tanh", "DP-SRM relative", (tanh, wor)),
        ("momentum, tanh; ReLU", "DP-SGD momentum", (tanh, relu)),
        ("DP-Adam, WOR, tanh", "DP-Adam", (wor,)),
    ):
        found = [rows[method, *place] for place in places]
        both = [[getattr(row, f"{cost}_to_rival").mean for row in found] for cost in ("iterations", "time")]
        shown = " | ".join("; ".join(f"{each:.2f}" for each in column) for column in both)
        assert f"| {name} | {shown} |" in PAGE.replace(" (4 trials of 5)", "")


def _text(gain):
    if gain is None:
        return ""
    mean, half = (100 * part for part in gain)
    return f"{'−' if mean < 0 else '+'}{abs(mean):.2f} ± {half:.2f} %"


def test_the_results_are_the_accountants():
    """Calibrated anew for the fastest row; and in the limit of large noise the formula of flow time is right."""
    kept = {row.batch: row for row in read_noise(ROOT / "results" / "does-it-help.jsonl")}
    again = noise_row(8192)
    assert again.poisson == pytest.approx(kept[8192].poisson, rel=2e-3)
    assert again.wor == pytest.approx(kept[8192].wor, rel=2e-3)
    assert kept[8192].entered_poisson == pytest.approx(1.0, abs=0.01)
    assert [row.entered_wor for row in kept.values()] == sorted(
        (row.entered_wor for row in kept.values()), reverse=True
    )
    assert f"falls {kept[64].entered_wor / kept[2048].entered_poisson:.1f}-fold" in PAGE


def test_one_release_moves_theta_as_the_formula_says():
    """By simulation: v ← r + (1−γ)v, θ ← θ − ηv, one release r of length R = γC1 + (1−γ)C2 and then none."""
    gamma, c1, c2, rate = 0.3, 2.0, 0.5, 0.1
    v, theta, release = 0.0, 0.0, gamma * c1 + (1 - gamma) * c2
    for t in range(200):
        v = (release if t == 0 else 0.0) + (1 - gamma) * v
        theta += rate * v
    assert theta / (rate * c1) == pytest.approx(extra_factor(gamma, c2 / c1))
    assert extra_factor(0.01, 0.01) == pytest.approx(1.99)


def test_few_and_many_steps_flow_as_far_over_the_same_passes():
    for cell in cells():
        recipe, (method, flow, steps) = flow_recipe(cell, 32561), cell
        assert recipe.training["learning_rate"] * steps == pytest.approx(flow)
        assert recipe.training["batch"] * steps == pytest.approx(4 * 32561, rel=0.01)
        assert recipe.label == method in METHODS


def test_the_pages_objectives_are_those_of_the_results(told):
    """Every cell was run ten times; the page's table has every second number of steps."""
    rows = {(row["method"], row["flow"], row["steps"]): row for row in told["flow"]}
    assert set(rows) == set(cells())
    assert all(row["trials"] == 10 for row in rows.values())
    for flow in (4, 16, 64):
        for method in METHODS:
            shown = [f"{rows[method, flow, steps]['objective']:.4f}" for steps in (4, 8, 16, 32, 256)]
            assert f"| τ = {flow} | {method} | {' | '.join(shown)} |" in PAGE


def test_where_no_step_is_too_large_their_number_does_not_matter():
    """What the page says of the figure: from 32 steps on all methods are within half a per cent of each other."""
    rows = read_flow(ROOT / "results" / "flow.jsonl")
    for flow in {row.flow for row in rows}:
        many = [row.objective for row in rows if row.flow == flow and row.steps >= 32]
        assert max(many) / min(many) < 1.005


def test_the_pages_errors_are_those_of_the_sweep(told):
    """Every cell was run three times; the best rate of each method is bold."""
    rows = {(row["method"], row["epsilon"], row["rate"]): row for row in told["sweep"]}
    assert len(rows) == len(sweep_recipes()) == len(RATES) * len(EPSILONS) * len(sweep.METHODS)
    assert all(row["trials"] == TRIALS for row in rows.values())
    for epsilon in EPSILONS:
        for method in sweep.METHODS:
            shown = [f"{rows[method, epsilon, rate]['error']:.2f}" for rate in RATES]
            best = min(shown, key=float)
            line = " | ".join(f"**{each}**" if each == best else each for each in shown)
            assert f"| ε = {epsilon:g} | {method} | {line} |" in PAGE


def test_what_the_page_says_of_the_sweep_is_so():
    rows = {(row.method, row.epsilon, row.rate): row.error for row in sweep_rows(Lab(ROOT, ROOT / "results"))}
    best = {(m, e): min(rows[m, e, rate] for rate in RATES) for m in sweep.METHODS for e in EPSILONS}
    eight = [best[method, 8.0] for method in sweep.METHODS]
    assert max(eight) - min(eight) < 0.3, "each at its best rate, all are the same"
    for rate in (rate for rate in RATES if rate <= 10):
        assert rows["DP-SGD", 2.0, rate] == min(rows[method, 2.0, rate] for method in sweep.METHODS)
    for other in ("DP-SRM", "DP-SGD momentum"):
        assert rows["DP-SGD", 8.0, 20.0] - rows[other, 8.0, 20.0] > 5, "room for error in the step"


def test_a_sweep_is_read_from_the_tries_on_held_out_records(tmp_path):
    """All methods have the same clip, batch, passes and rates; a trial that diverged counts as guessing."""
    lab, recipes = Lab(tmp_path, tmp_path), sweep_recipes()
    assert len({(recipe.epsilon, recipe.training["learning_rate"]) for recipe in recipes}) * 3 == len(recipes)
    kept = {(recipe.settings["max_grad_norm"], recipe.training["batch"], recipe.sampling) for recipe in recipes}
    assert kept == {(1.0, 1024, "poisson")}
    trials = [{"seed": seed, "noise_multiplier": 1.0, "test_error": error} for seed, error in enumerate((0.3, None))]
    lab.add("cifar10-cnn6-validation", recipes[0], trials)
    (row,) = sweep_rows(lab)
    assert (row.method, row.trials, row.error) == (recipes[0].label, 2, pytest.approx(60.0))
    assert row.half == pytest.approx(12.706 * 30, rel=1e-3)
    assert "60.00 ± 381.19 %" in str(row)


def test_a_cell_is_run_and_kept(tmp_path):
    """Its noise is that of its own batch and steps; what was run is not missing any more."""
    inputs = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    problem = Logistic("tiny", *(Records(inputs, (inputs[:, 0] > 0).float()),) * 2)
    row = flow_row(problem, ("DP-SRM", 4.0, 8), trials=2)
    setting = Setting(problem="tiny", n=400, batch=200, epsilon=0.5, steps=8)
    assert (row.batch, row.trials) == (200, 2)
    assert row.noise_multiplier == pytest.approx(needed_noise(setting, "pld", Scheme.POISSON), rel=1e-3)
    assert row.half > 0
    keep_flow(tmp_path / "flow.jsonl", row)
    assert read_flow(tmp_path / "flow.jsonl") == [row]
    assert set(cells()) - set(missing_cells([row])) == {("DP-SRM", 4.0, 8)}


def test_a_figure_drawn_again_is_the_same_files(tmp_path):
    rows = read_noise(ROOT / "results" / "does-it-help.jsonl")
    for folder in ("one", "other"):
        draw_noise(rows, tmp_path / folder / "help-noise")
    for kind in ("png", "svg"):
        one, other = ((tmp_path / folder / f"help-noise.{kind}").read_bytes() for folder in ("one", "other"))
        assert one == other
