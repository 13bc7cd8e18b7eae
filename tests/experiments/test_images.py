"""The paper's networks: their sizes, every row at a tiny size, pretraining that is cached, results as JSON."""

import hashlib
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpsrm.core.errors import InputError
from dpsrm.data import Records, public
from dpsrm.data.public import PublicFile
from dpsrm.experiments import images, pretraining, reproduction, timing
from dpsrm.experiments.image_spaces import image_spaces
from dpsrm.experiments.images import SMOOTHED, Images, smoothed_loss
from dpsrm.experiments.lab import Cost, Lab
from dpsrm.experiments.networks import cnn4, cnn5, cnn6_head, cnn6_trunk, he_start, seeded
from dpsrm.experiments.pretraining import CIFAR_PIXELS, Pretraining, features, trunk
from dpsrm.experiments.problems import ABOUT, load_problem, prepare_problem
from dpsrm.experiments.ratios import ratio
from dpsrm.experiments.recipes import Recipe
from dpsrm.experiments.reproduction import Reproduction, Wanted
from dpsrm.experiments.runner import run_recipe
from dpsrm.experiments.spaces import Space
from dpsrm.experiments.tuning import SHORT, Effort, Search, Tuned, write_tuned
from dpsrm.gradients import multiclass_loss

NETWORKS = ["mnist", "cifar10-cnn5", "cifar10-cnn6", "features-mnist"]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_the_networks_are_the_papers():
    """Weights and biases, counted by hand from the paper's description."""
    assert parameters(cnn4()) == (64 * 16 + 16) + (16 * 16 * 32 + 32) + (512 * 32 + 32) + (32 * 10 + 10)
    assert parameters(cnn5()) == (75 * 6 + 6) + (150 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert parameters(cnn6_trunk()) == (27 * 32 + 32) + (288 * 64 + 64) + (576 * 128 + 128)
    assert parameters(cnn6_head()) == (2048 * 64 + 64) + (64 * 32 + 32) + (32 * 10 + 10)
    assert cnn4("tanh")(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert cnn5("tanh")(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert cnn6_head("tanh")(cnn6_trunk()(torch.zeros(2, 3, 32, 32))).shape == (2, 10)


def test_hes_start_suits_relu_and_changes_nothing_else():
    ours, torchs = (seeded(build, 0) for build in (lambda: he_start(cnn4("relu")), lambda: cnn4("relu")))
    assert str(ours) == str(torchs)
    first = [ours[0], ours[3], ours[7]]
    for layer in first:
        assert abs(float(layer.weight.detach().square().mean()) * layer.weight[0].numel() / 2 - 1) < 0.1
    assert all(not layer.bias.any() for layer in (*first, ours[9]))
    assert torch.equal(ours[9].weight, torchs[9].weight)
    assert set(ABOUT["mnist"].models) == {"CNN4 relu", "CNN4 tanh", "CNN4 relu, He", SMOOTHED}
    pairs = zip(image_spaces("mnist", "CNN4 relu, He"), image_spaces("mnist", "CNN4 relu"), strict=True)
    for he, relu in pairs:
        assert replace(he, model=relu.model, at_rank=relu.at_rank) == relu, "both are searched alike"
        if he.at_rank:
            before, begun = he.begin(1), he.begin(2)
            assert begun == {**before, "epochs": 2, "learning_rate": 5}, "but at ε = 7, where more passes cost less"
    assert [replace(space, model=SMOOTHED) for space in image_spaces("mnist", "CNN4 relu, He")] == list(
        image_spaces("mnist", SMOOTHED)
    ), "and so is the one with another loss"


def test_only_the_smoothed_model_has_another_loss():
    outputs, labels = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])
    surprise = -torch.log_softmax(outputs, 1)
    assert torch.allclose(smoothed_loss(outputs, labels), 0.9 * surprise[:, 1] + 0.1 * surprise.mean(1))
    images = replace(digits(), losses={SMOOTHED: smoothed_loss})
    for problem in (images, images.validation()):
        assert problem.loss_of(SMOOTHED) is smoothed_loss
        assert problem.loss_of("CNN4 relu, He") is multiclass_loss


def test_a_seeds_start_is_its_own_and_leaves_torchs_alone():
    before = torch.random.get_rng_state()
    first, again, other = (seeded(cnn5, seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def digits(n=240, *, model="CNN6 tanh"):
    """A small problem in the shape of CNN6's features, with a head that learns it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 10
    inputs = torch.nn.functional.one_hot(labels, 12).float() + 0.1 * torch.randn(n, 12, generator=generator)
    parts = Records(inputs[: n - 40], labels[: n - 40]), Records(inputs[n - 40 :], labels[n - 40 :])
    return Images("toy", *parts, {model: lambda: cnn6_head("tanh", features=12)}, facts={"trunk": "abc"})


@pytest.mark.parametrize("problem", NETWORKS)
def test_every_row_runs(problem):
    """Each method with its first settings, at a tiny size, under either sampling; non-private SGD learns."""
    toy = digits(model="CNN6 tanh")
    for space in image_spaces(problem, ABOUT[problem].models[-1]):
        for also in ({}, ABOUT[problem].also):
            recipe = replace(space.recipe(space.begin(2), epsilon=8.0, sampling="poisson"), **also)
            small = {**recipe.training, "batch": 50, "epochs": 0.75}
            if "first_batch" in small:
                assert recipe.training["first_batch"] == recipe.training["batch"]
                assert recipe.settings["max_diff_norm"] == recipe.settings["gamma"]
                small["first_batch"] = 50
            (trial,) = run_recipe(toy, replace(recipe, training=small, model="CNN6 tanh"), [0], points=2)
            assert 0 <= trial["test_error"] <= 1
            assert trial["test_objective"] == trial["test_log_loss"]
            assert trial["trunk"] == "abc"
            assert len(trial["curve"]) >= 2
            assert (trial["epsilon_proved"] is None) == (not space.private)
            assert trial["epsilon_proved"] is None or trial["epsilon_proved"] <= 8.0


def test_error_is_the_share_of_wrong_answers_and_training_lowers_it():
    toy = digits(1040)
    recipe = Recipe(
        label="SGD",
        method="sgd",
        settings={"momentum": 0.9},
        training={"batch": 50, "epochs": 10.0, "learning_rate": 0.5, "output": "last"},
        model="CNN6 tanh",
    )
    (trial,) = run_recipe(toy, recipe, [0], points=4)
    assert trial["test_error"] == 0.0
    assert trial["curve"][-1][1] == 0.0
    head = toy.start("CNN6 tanh", 0)
    theta = torch.cat([p.detach().reshape(-1) for p in head.parameters()])
    wrong = (head(toy.test.inputs).argmax(1) != toy.test.targets).double().mean()
    assert toy.measures("CNN6 tanh", theta)["test_error"] == pytest.approx(float(wrong), abs=1e-12)
    assert wrong > 0.5
    lost = toy.measures("CNN6 tanh", theta * math.nan)
    assert all(math.isnan(value) for value in lost.values())


def test_trials_of_one_job_start_apart():
    toy, recipe = digits(), image_spaces("cifar10-cnn6", "CNN6 tanh")[1]
    recipe = recipe.recipe(recipe.begin(0), epsilon=8.0, sampling="poisson")
    small = replace(recipe, training={"batch": 20, "steps": 2, "learning_rate": 1e-9})
    first, second = (trial["test_log_loss"] for trial in run_recipe(toy, small, [0, 1], points=0))
    assert abs(first - second) > 1e-3  # the steps alone move it by far less


def test_a_short_search_begins_with_the_guess_and_tries_nothing_twice(tmp_path):
    lab = Lab(tmp_path, tmp_path)
    space = image_spaces("mnist", "CNN4 relu")[2]
    search = Search(problem="mnist", space=space, epsilon=3.0, effort=SHORT, rank=1)
    for rounds in range(SHORT.rounds + 1):
        points = search.tries(lab, rounds)
        for number, point in enumerate(points):
            trial = {"seed": 0, "noise_multiplier": 1.0, "test_error": 0.1 + number / 1000}
            lab.add("mnist-validation", search.recipe(point), [trial])
    assert points[0] == space.begin(1)
    assert len({search.recipe(point).key for point in points}) == len(points) == 5
    assert search.best(lab, points, 1) == [points[0]]
    assert SHORT.runs == 5


def test_a_fresh_search_finds_all_neighbours(tmp_path):
    """Two axes of three values: the middle has eight neighbours, and nine tries find them all."""
    space = Space(
        label="x",
        method="sgd",
        settings={"max_grad_norm": [0.5, 1.0, 2.0]},
        training={"learning_rate": [1.0, 2.0, 4.0]},
        first={"max_grad_norm": 1, "learning_rate": 1},
        model="CNN4 relu",
    )
    effort = Effort(random=1, neighbours=8, rounds=1, parents=1, fresh=True)
    search = Search(problem="mnist", space=space, epsilon=1.2, effort=effort)
    tried = search.tries(Lab(tmp_path, tmp_path), 1)
    assert len({tuple(point.values()) for point in tried}) == len(tried) == 9


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Made-up CIFAR files with digests of their own."""
    stream = np.random.default_rng(0)
    for name, labels in (("cifar-10", 1), ("cifar-100", 2)):
        files = []
        for file in public.IMAGE_SETS[name]:
            table = stream.integers(0, 256, (40, labels + 3072), dtype=np.uint8)
            table[:, :labels] %= 10
            path = tmp_path / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(table.tobytes())
            files.append(PublicFile(file.path, hashlib.sha256(table.tobytes()).hexdigest(), "http://127.0.0.1:9"))
        monkeypatch.setitem(public.IMAGE_SETS, name, tuple(files))
    monkeypatch.setattr(pretraining, "_HELD", 10)
    return tmp_path


def test_pretraining_and_features_are_kept_under_their_fingerprint(cifar, monkeypatch):
    recipe, titles = Pretraining(epochs=1, batch=10), []

    def track(items, total, title):
        items = list(items)
        assert len(items) == total
        titles.append(title)
        return items

    first = trunk(cifar, recipe=recipe, track=track)
    again = trunk(cifar, recipe=recipe, track=track)
    assert len(titles) == 1
    assert first.digest == again.digest
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in first.module)
    assert Pretraining(epochs=2, batch=10).fingerprint != recipe.fingerprint
    pixels = torch.arange(2 * 3072).reshape(2, 3, 32, 32).remainder(256).to(torch.uint8)
    found = features(first, "x", cifar, pixels=pixels, track=track)
    alone = first.module((pixels[1:].float() / 255 - CIFAR_PIXELS["centre"]) / CIFAR_PIXELS["spread"])
    assert torch.allclose(found[1], alone[0], rtol=2e-3, atol=1e-4)
    features(first, "x", cifar, pixels=pixels, track=track)
    assert titles[1:] == ["CNN6: features of x"]
    titles.clear()
    monkeypatch.setattr(images, "trunk", partial(trunk, recipe=recipe))
    for _ in range(2):
        assert prepare_problem("cifar10-cnn6", cifar, track) == first.digest
    assert titles == ["CNN6: features of cifar-10-train", "CNN6: features of cifar-10-test"]
    problem = load_problem("cifar10-cnn6", cifar)
    assert problem.train.inputs.shape == (200, 2048)
    assert problem.facts["trunk"] == first.digest


def test_a_table_is_not_continued_on_another_trunk(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "prepare_problem", lambda *_: "def")
    work = Reproduction(problem="cifar10-cnn6", lab=Lab(tmp_path, tmp_path))
    kept, other = work.recipes(Wanted(methods=("DP-SGD",), epsilons=(2.0,)))[:2]
    work.lab.add("cifar10-cnn6", kept, [{"seed": 0, "trunk": "abc"}])
    with pytest.raises(InputError, match="one pretrained trunk"):
        work.run([other], [0])


def test_the_trunk_kept_beside_the_results_is_used(tmp_path, monkeypatch):
    """It is brought before anything is prepared; a trunk of the user's own stays, and no other problem brings one."""
    kept = tmp_path / "results" / "cnn6" / "trunk-abc.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"the table's")
    brought = tmp_path / "data" / "cnn6" / "trunk-abc.safetensors"
    seen = []
    monkeypatch.setattr(reproduction, "prepare_problem", lambda *_: seen.append(brought.exists()) or "")
    monkeypatch.setattr(reproduction, "run_jobs", lambda *_, **__: iter(()))
    for problem in ("mnist", "cifar10-cnn6"):
        work = Reproduction(problem=problem, lab=Lab(tmp_path / "data", tmp_path / "results"))
        work.run(work.recipes()[:1], [0])
    assert seen == [False, True]
    assert brought.read_bytes() == b"the table's"
    brought.write_bytes(b"my own")
    work.run(work.recipes()[:1], [0])
    assert brought.read_bytes() == b"my own"


def test_folding_batch_norm_changes_nothing():
    torch.manual_seed(0)
    normalised = cnn6_trunk(normalised=True)
    batch = 3 * torch.randn(16, 3, 32, 32) + 1
    for _ in range(3):
        normalised(batch)
    normalised.eval()
    folded = pretraining._folded(normalised)
    assert torch.allclose(folded(batch), normalised(batch), atol=1e-4)
    assert list(folded.state_dict()) == list(cnn6_trunk().state_dict())


def test_image_problems_are_loaded_from_their_files(cifar):
    problem = load_problem("cifar10-cnn5", cifar)
    assert problem.train.inputs.shape == (200, 3, 32, 32)
    assert len(problem.test) == 40
    assert float(problem.train.inputs.min()) == -2
    assert len(problem.validation().train) == 160


def test_features_of_images_and_a_linear_model(cifar, dpsrm):
    """From files to rows: under both adjacencies, whose keys and proved budgets differ; all from one command."""
    problem = load_problem("features-cifar10", cifar)
    assert problem.train.inputs.shape == (200, 15552)
    assert torch.allclose(problem.train.inputs.norm(dim=1), torch.ones(200), atol=1e-2)
    assert len(list((cifar / "features").iterdir())) == 2
    start = problem.start("scattering-photos, linear", 0)
    assert [(name, float(p.detach().abs().sum())) for name, p in start.named_parameters()] == [("weight", 0.0)]
    space = image_spaces("features-cifar10", "scattering-photos, linear")[1]
    recipe = space.recipe(space.begin(0), epsilon=3.0, sampling="poisson")
    small = replace(recipe, training={**recipe.training, "batch": 20, "epochs": 0.3})
    write_tuned(
        cifar / "features-cifar10-tuned.json",
        [Tuned(recipe=small, runs=5, validation_objective=0.3, epsilon_with_tuning=18.0)],
    )
    where = ("--data-dir", cifar, "--results", cifar, "--workers", 1, "--trials", 2, "--json")
    done = dpsrm("reproduce", "features-cifar10", *where)
    assert done.code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["adjacency"] for row in rows] == ["add-remove", "replace-one"]
    assert rows[0]["noise_multiplier"] != rows[1]["noise_multiplier"]
    assert [row["epsilon_with_tuning"] for row in rows] == [None, 18.0]
    assert rows[0]["trials"] == 2
    again = dpsrm("reproduce", "features", "--from-results", "--seconds", *where)
    found = json.loads(again.stdout)["rows"]
    assert [row["problem"] for row in found] == ["features-cifar10"] * 2
    costs = json.loads((cifar / "features-cifar10-seconds.json").read_text())
    assert len(costs) == 2, "both rows were measured"
    expected = sorted(cost["planning"] + rows[0]["steps"] * cost["step"] for cost in costs.values())
    assert sorted(row["seconds"] for row in found) == pytest.approx(expected)
    assert all(cost["step"] > 0 for cost in costs.values())


def test_tuning_one_row_keeps_the_others(tmp_path, monkeypatch):
    """Those that came with the package too; a row that is searched again is replaced."""
    work = Reproduction(problem="cifar10-cnn6", lab=Lab(tmp_path, tmp_path))
    shipped = work.tuned()
    again = replace(shipped[0], validation_objective=0.0)
    monkeypatch.setattr(reproduction, "tune", lambda *args, **kwargs: [again])
    work.tune(Wanted(epsilons=(4.0,), models=("CNN6 tanh",), methods=("DP-SGD",)))
    assert work.tuned() == [*shipped[1:], again]


def test_dp_sgd_runs_at_half_its_step_too_where_that_is_asked(tmp_path):
    """Nothing else changes; it is no rival of the ratios, and stands under both samplings."""
    rows = Reproduction(problem="cifar10-cnn6", lab=Lab(tmp_path, tmp_path)).recipes(Wanted(methods=("DP-SGD",)))
    halved = [row for row in rows if row.label == "DP-SGD, half step"]
    assert len(halved) == len(rows) / 2 == 12
    assert {row.sampling for row in halved} == {"poisson", "wor"}
    for half in halved:
        training = {**half.training, "learning_rate": 2 * half.training["learning_rate"]}
        assert replace(half, label="DP-SGD", training=training) in rows
    others = Reproduction(problem="mnist", lab=Lab(tmp_path, tmp_path)).recipes(Wanted(methods=("DP-SGD",)))
    assert {row.label for row in others} == {"DP-SGD"}


def test_how_soon_a_method_is_as_good_as_dp_sgd():
    """By hand: DP-SGD ends at 0.2 after 100 steps of 1 s; the other is there half-way, or never."""
    rival = [{"curve": [[0.5, 0.4, 1.0], [1.0, end, 1.0]], "steps": 100, "seconds": 100.0} for end in (0.1, 0.3)]
    fast = [{"curve": [[0.5, 0.3, 1.0], [1.0, 0.1, 1.0]], "steps": 40, "seconds": 80.0}] * 2
    never = [{"curve": [[0.5, 0.3, 1.0], [1.0, 0.25, 1.0]], "steps": 40, "seconds": 80.0}]
    at_once = [{"curve": [[0.5, 0.1, 1.0], [1.0, 0.3, 1.0]], "steps": 40, "seconds": 80.0}]
    assert ratio(fast, rival, "steps").mean == pytest.approx(0.75 * 40 / 100)
    assert ratio(fast, rival, "seconds").mean == pytest.approx(0.75 * 80 / 100)
    assert ratio([*fast, *never], rival, "steps").reached == 2
    assert str(ratio([*fast, *never], rival, "steps")) == "0.30 ± 0.00 (2 of 3)"
    assert str(ratio(never, rival, "steps")) == "not reached"
    assert str(ratio(at_once, rival, "steps")) == "0.20"
    assert ratio([{"steps": 3}], rival, "steps") is None
    lost = [{"curve": [[0.5, None, None], [1.0, 0.1, 1.0]], "steps": 100, "seconds": 1.0}]
    assert ratio(lost, rival, "steps").mean == pytest.approx(1.0)


def test_seconds_are_those_measured_side_by_side(tmp_path):
    """Trials of two rows come from machines of different speed; what their runs cost was measured in one."""
    lab, space = Lab(tmp_path, tmp_path), image_spaces("mnist", "CNN4 tanh")[1]
    recipe = space.recipe(space.begin(1), epsilon=3.0, sampling="poisson")
    lab.add("mnist", recipe, [{"seed": seed, "seconds": 10.0 * (1 + seed), "steps": 100} for seed in (0, 1)])
    assert [trial["seconds"] for trial in lab.read("mnist", recipe)] == [10.0, 20.0]
    lab.keep_costs("mnist", {"another row": Cost(planning=9, step=9)})
    assert [trial["seconds"] for trial in lab.read("mnist", recipe)] == [10.0, 20.0]
    lab.keep_costs("mnist", {recipe.key: Cost(planning=0.5, step=0.02)})
    assert [trial["seconds"] for trial in lab.read("mnist", recipe)] == [2.5, 2.5]
    with pytest.raises(InputError, match="images"):
        Reproduction(problem="a9a", lab=lab).time([])


def test_every_step_that_counts_was_run_beside_all_others(monkeypatch):
    """A slow minute of the machine hits every row: in each round each of them runs once."""
    told = []
    monkeypatch.setattr(timing, "_begin", lambda problem, recipe: (0.5, SimpleNamespace(done=False, name=recipe.label)))
    monkeypatch.setattr(timing, "_seconds", lambda step: told.append(step.name) or float(len(told)))
    recipes = [Recipe(label=name, method=name) for name in ("sgd", "srm", "disk")]
    costs = timing.measure(None, recipes, rounds=5)
    rounds = [told[i : i + 3] for i in range(0, len(told), 3)]
    assert len(rounds) == 7
    assert all(sorted(each) == ["disk", "sgd", "srm"] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    last = [3 * number + each.index("sgd") + 1 for number, each in enumerate(rounds)][2:]
    assert costs[recipes[0].key] == Cost(planning=0.5, step=sorted(last)[2])


def test_rows_from_results_are_json(dpsrm, tmp_path):
    lab = Lab(tmp_path, tmp_path)
    space = image_spaces("mnist", "CNN4 tanh")[3]
    recipe = space.recipe(space.begin(1), epsilon=3.0, sampling="poisson")
    write_tuned(
        tmp_path / "mnist-tuned.json",
        [Tuned(recipe=recipe, runs=12, validation_objective=0.03, epsilon_with_tuning=39.0)],
    )
    trial = {"test_objective": 0.1, "test_log_loss": 0.1, "seconds": 9.0, "epsilon_proved": 2.99}
    trial |= {"noise_multiplier": 0.6, "passes": 10.0, "steps": 586, "gradients": 1e6}
    trial["curve"] = [[0.5, 0.06, 0.2], [1.0, 0.03, 0.1]]
    lab.add("mnist", recipe, [{**trial, "seed": seed, "test_error": 0.03 + 0.001 * seed} for seed in range(3)])
    done = dpsrm("reproduce", "mnist", "--from-results", "--results", tmp_path, "--json")
    assert done.code == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["method"] == "DP-SRM"
    assert row["model"] == "CNN4 tanh"
    assert row["test_error"] == pytest.approx(0.031)
    assert row["paper"]["test_error"] == 0.0362
    assert row["epsilon_with_tuning"] == 39.0
    assert row["gradient_norm"] is None
    assert (row["trials"], row["steps"]) == (3, 586)
    report = (tmp_path / "report" / "report.html").read_text()
    assert "mnist, CNN4 tanh" in report
    assert "3.10 % ± 0.25" in report
    assert {path.name for path in (tmp_path / "report" / "images").iterdir()} == {
        "mnist-tanh-3.png",
        "mnist-tanh-3.svg",
    }
    other = dpsrm("reproduce", "mnist", "--from-results", "--results", tmp_path, "--epsilon", 2)
    assert other.code == 2
    assert "1.2, 3.0, 7.0" in other.stderr
    assert Reproduction(problem="mnist", lab=lab).recipes(Wanted(epsilons=(7.0,))) == []
