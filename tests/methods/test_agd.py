"""DP-AGD: the selection's privacy by exact enumeration (and the wrong sign's failure), purchases, the zCDP filter."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate

from conftest import make_problem
from dpsrm.accounting.calibrate import accountant
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, Charge, Sampling, Scheme, Spending, ZcdpRelease
from dpsrm.core.secret import ClippedScores, ClippedSum, Streams
from dpsrm.data import Records
from dpsrm.gradients import clipped_losses
from dpsrm.mechanisms import Airlock, Selection
from dpsrm.mechanisms.noisy_min import noisy_min, selection_epsilon
from dpsrm.methods import Agd, ConstantStep, NonconvexPenalty, Regularised, Schedule
from dpsrm.runs.ledger import Header, Ledger, read_ledger
from dpsrm.training import Privacy, Settings, Training, train

EPSILON, CLIP = 0.4, 1.5
DENSITY = {
    Selection.EXPONENTIAL: lambda z: math.exp(-z),
    Selection.GUMBEL: lambda z: math.exp(-z - math.exp(-z)),
}
BELOW = {
    Selection.EXPONENTIAL: lambda z: -math.expm1(-max(z, 0.0)),
    Selection.GUMBEL: lambda z: math.exp(-math.exp(-z)),
}
SPREAD = {Adjacency.REPLACE_ONE: 2 * CLIP, Adjacency.ADD_REMOVE: CLIP}


def probabilities(scores, *, scale, selection, sign=-1):
    """P[j wins argmin(score + sign·Z)] for every j, by numerical integration over Z_j."""
    density, below, q = DENSITY[selection], BELOW[selection], [score / scale for score in scores]

    def wins(z, j):
        others = [k for k in range(len(q)) if k != j]
        if sign < 0:  # q_j − z < q_k − Z_k  ⇔  Z_k < z + q_k − q_j
            return density(z) * math.prod(below(z + q[k] - q[j]) for k in others)
        return density(z) * math.prod(1 - below(z + q[j] - q[k]) for k in others)

    low, kinks = (0.0 if selection is Selection.EXPONENTIAL else -6.0), sorted({a - b for a in q for b in q})
    cuts = [low, *(x for x in kinks if x > low), 40.0]
    pieces = [
        [integrate.quad(wins, a, b, args=(j,), epsabs=1e-12)[0] for a, b in itertools.pairwise(cuts)]
        for j in range(len(q))
    ]
    found = np.array([math.fsum(each) for each in pieces])
    assert found.sum() == pytest.approx(1, abs=1e-8)
    return found


def neighbours(candidates, adjacency):
    """Pairs of score vectors of adjacent datasets: a record of extreme losses is replaced, or taken away."""
    extremes = list(itertools.product((0.0, CLIP), repeat=candidates))
    bases = [np.zeros(candidates), np.arange(candidates) * CLIP / 2, np.eye(candidates)[0] * 3 * CLIP]
    for base, here in itertools.product(bases, extremes):
        if adjacency is Adjacency.ADD_REMOVE:
            yield base + here, base
        else:
            for there in extremes:
                yield base + here, base + there


def worst(adjacency, *, candidates, selection, sign=-1):
    """The largest log-ratio, and the largest range of log-ratios over the outcomes, among all neighbours."""
    scale, known = SPREAD[adjacency] / EPSILON, {}

    def found(scores):
        key = tuple(np.round(scores - scores.min(), 9))
        if key not in known:
            known[key] = np.log(probabilities(key, scale=scale, selection=selection, sign=sign))
        return known[key]

    ratios = [found(a) - found(b) for a, b in neighbours(candidates, adjacency)]
    return max(np.abs(r).max() for r in ratios), max(np.ptp(r) for r in ratios)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("candidates", [2, 3])
def test_the_selection_meets_its_claim_and_the_wrong_sign_does_not(adjacency, candidates):
    """Two candidates cannot tell the signs apart, since the difference of two exponentials is symmetric; three can."""
    right, _ = worst(adjacency, candidates=candidates, selection=Selection.EXPONENTIAL)
    assert 0.95 * EPSILON < right <= EPSILON + 1e-7
    wrong, _ = worst(adjacency, candidates=candidates, selection=Selection.EXPONENTIAL, sign=+1)
    if candidates == 2:
        assert wrong == pytest.approx(right, abs=1e-7)
    else:
        assert wrong > 1.3 * EPSILON


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_gumbel_noise_has_bounded_range(adjacency):
    """Log-ratios within an interval of length ε: what makes it ε²/8-zCDP."""
    ratio, spread = worst(adjacency, candidates=3, selection=Selection.GUMBEL)
    assert ratio <= EPSILON + 1e-6
    assert 0.95 * EPSILON < spread <= EPSILON + 1e-6


def test_exponential_noise_has_not():
    """So its price is ε²/2."""
    _, spread = worst(Adjacency.REPLACE_ONE, candidates=3, selection=Selection.EXPONENTIAL)
    assert spread > 1.2 * EPSILON
    assert selection_epsilon(0.02, Selection.GUMBEL) == 2 * selection_epsilon(0.02, Selection.EXPONENTIAL)


@pytest.mark.parametrize("selection", list(Selection))
def test_what_runs_is_what_was_enumerated(selection):
    scores, trials, stream = (0.0, 2.0, 1.0), 20_000, Streams.seeded(0).noise
    secret = ClippedScores(secret=scores, bound=CLIP, rows=3)
    picks = [
        noisy_min(secret, epsilon=1.0, selection=selection, adjacency=Adjacency.REPLACE_ONE, stream=stream)
        for _ in range(trials)
    ]
    seen = np.bincount(picks, minlength=3) / trials
    right = probabilities(scores, scale=2 * CLIP, selection=selection)
    error = 5 * np.sqrt(right * (1 - right) / trials)
    assert (np.abs(seen - right) < error).all()
    for factor in (2 / 3, 3 / 2):
        other = probabilities(scores, scale=factor * 2 * CLIP, selection=selection)
        assert (np.abs(seen - other) > error).any()


@pytest.mark.parametrize("scale", [1.0, 1e6, math.inf, math.nan])
@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_no_record_moves_the_scores_apart_by_more_than_the_spread(kind, scale):
    objective, make = make_problem(kind)
    theta = objective.layout.read(objective.module)
    points = [theta + shift for shift in (0.0, 0.5, -3.0, 100.0)]
    inputs, targets = make(6)
    other_inputs, other_targets = make(1, seed=9, scale=scale)

    def scores(inputs, targets):
        return np.array(clipped_losses(objective, points, (inputs, targets), clip=CLIP, offsets=[0.0] * 4).secret)

    replaced = scores(torch.cat([inputs[:-1], other_inputs]), torch.cat([targets[:-1], other_targets]))
    whole, without = scores(inputs, targets), scores(inputs[:-1], targets[:-1])
    assert np.isfinite(replaced).all()
    assert np.ptp(replaced - whole) <= 2 * CLIP * (1 + 1e-9)
    assert np.ptp(whole - without) <= CLIP * (1 + 1e-9)


def test_scores_are_clipped_losses_plus_offsets():
    objective, make = make_problem("logistic")
    theta = objective.layout.read(objective.module)
    inputs, targets = make(5)
    direct = objective.losses(theta, (inputs, targets)).double().clamp(0, 0.7).sum().item()
    found = clipped_losses(objective, [theta], (inputs, targets), clip=0.7, offsets=[2.0])
    assert found.secret[0] == pytest.approx(2.0 + direct)
    assert (found.bound, found.rows) == (0.7, 5)


def walk(**settings):
    schedule = Schedule(steps=30, batch=10, first_batch=10)
    zero = torch.zeros(2, dtype=torch.float64)
    return Agd(rho=0.1, **settings).begin(zero, schedule=schedule, stepper=ConstantStep(0.5))


def gradient(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_accepted_candidate_is_the_one_that_won():
    """θ − α_j·η·g with α_j = reach·j/m: the published code takes j − 1."""
    w = walk(candidates=4, reach=2.0)
    w.tell(gradient(1.0, -2.0))
    assert [p.tolist() for p in w.ask().points][:2] == [[0.0, 0.0], [-0.25, 0.5]]
    w.tell(torch.tensor(3))
    assert w.theta.tolist() == [-0.75, 1.5]
    assert w.time == 1


def test_a_stay_buys_accuracy_and_averages_by_precision():
    w = walk(growth=0.25)
    assert w.ask().rho == 0.1
    w.tell(gradient(1.0, 0.0), std=1.0)
    assert w.ask().rho == 0.1
    w.tell(torch.tensor(0))
    bought = w.ask()
    assert bought.rho == pytest.approx(0.025)
    w.tell(gradient(6.0, 5.0), std=2.0)  # the price is a quarter, so the noise is twice
    assert w.direction.tolist() == pytest.approx([(0.1 * 1 + 0.025 * 6) / 0.125, 0.025 * 5 / 0.125])
    assert w.std == pytest.approx(math.sqrt(0.1 / 0.125))  # as if 0.125 had been paid at once
    assert w.price == pytest.approx(0.125)
    w.tell(torch.tensor(1))
    assert w.ask().rho == pytest.approx(0.125)


def test_the_longest_candidate_follows_the_choices():
    w = walk(candidates=4, reach=2.0)
    for _ in range(10):
        w.tell(gradient(1.0, 1.0))
        w.tell(torch.tensor(2))
    assert w.reach == pytest.approx(1.1)
    w.tell(gradient(1.0, 1.0))
    w.tell(torch.tensor(0))
    assert w.reach == pytest.approx(0.88)


def test_a_regulariser_moves_the_candidates_and_their_scores():
    schedule, zero = Schedule(steps=3, batch=10, first_batch=10), torch.ones(2, dtype=torch.float64)
    stepper = Regularised(ConstantStep(1.0), NonconvexPenalty(0.2))
    w = Agd(rho=0.1, candidates=1, reach=1.0).begin(zero, schedule=schedule, stepper=stepper)
    w.tell(gradient(0.0, 0.0))
    ask = w.ask()
    assert ask.points[1].tolist() == pytest.approx([0.9, 0.9])  # ∇ = λ·2θ/(1+θ²)² = 0.1
    assert ask.offsets == pytest.approx((10 * 0.2, 10 * 0.4 * 0.81 / 1.81))


FULL = Sampling(scheme=Scheme.FULL, population=10, batch=10)


@pytest.mark.parametrize(("adjacency", "sensitivity"), [(Adjacency.REPLACE_ONE, 2.0), (Adjacency.ADD_REMOVE, 1.0)])
def test_the_noise_of_a_priced_release(adjacency, sensitivity, tmp_path):
    header = Header(adjacency=adjacency, epsilon=None, delta=None, accountant="none", private_randomness=True)
    with Ledger(tmp_path / "ledger", header) as ledger:
        door = Airlock(
            ledger,
            planned=Spending.of([], adjacency=adjacency),
            epsilon_of=lambda _: 0.0,
            noise=Streams.seeded(0).noise,
        )
        total = ClippedSum(secret=torch.zeros(40_000, dtype=torch.float64), bound=1.0, rows=10)
        measured = float(door.release_zcdp(total, sampling=FULL, rho=0.08).std())
        expected = sensitivity / math.sqrt(2 * 0.08) / 10
        assert measured == pytest.approx(expected, rel=0.03)
        assert door.noise_std(total, sampling=FULL, noise_multiplier=2.5) == pytest.approx(expected)
        assert ledger.spending.charges == (Charge(ZcdpRelease(rho=0.08), 1),)
        sampled = Sampling(scheme=Scheme.WOR, population=20, batch=10)
        with pytest.raises(InputError, match="all records"):
            door.release_zcdp(total, sampling=sampled, rho=0.08)
        scores = ClippedScores(secret=(1.0, 2.0), bound=1.0, rows=9)
        with pytest.raises(InputError, match="batch that is charged"):
            door.select(scores, sampling=FULL, rho=0.08, selection=Selection.GUMBEL)
        assert ledger.spending.releases == 1


def budget(epsilon, delta):
    """The largest ρ that the accountant turns into at most (ε, δ)."""
    low, high = 0.0, 10.0
    for _ in range(60):
        rho = (low + high) / 2
        spent = Spending.of([Charge(ZcdpRelease(rho=rho), 1)], adjacency=Adjacency.REPLACE_ONE)
        low, high = (rho, high) if accountant("rdp").epsilon(spent, delta).epsilon <= epsilon else (low, rho)
    return low


def test_the_filter_spends_the_budget_and_never_more(tmp_path):
    """On data with nothing to learn no step helps for long: purchases are made, and the run ends before its steps."""
    generator = torch.Generator().manual_seed(0)
    data = Records(torch.randn(60, 5, generator=generator), torch.randint(2, (60,), generator=generator))
    objective, _ = make_problem("logistic")
    settings = Settings(
        privacy=Privacy(epsilon=1.0, delta=1e-5, sampling="wor", accountant="rdp"),
        method=Agd(candidates=5, growth=0.5),
        training=Training(steps=20, learning_rate=1.0),
        seed=2,
    )
    seen = []
    run = train(objective.module, objective.loss, data, settings, out=tmp_path / "run", callbacks=[seen.append])
    facts = read_ledger(run.folder.ledger)
    spent = sum(charge.count * charge.event.rho for charge in facts.spending.charges)
    allowed = budget(1.0, 1e-5)
    prices = {charge.event.rho for charge in facts.spending.charges}
    assert len(prices) > 2
    assert spent <= allowed * (1 + 1e-9)
    assert spent + 2 * max(prices) > allowed
    assert len(seen) < 20
    assert run.epsilon <= 1.0


def test_without_purchases_the_steps_use_up_the_budget(tmp_path):
    """The first price is such that 2·steps releases cost ε."""
    objective, make = make_problem("logistic")
    inputs, _ = make(4000)
    settings = Settings(
        privacy=Privacy(epsilon=8.0, delta=1e-5, sampling="wor", accountant="rdp"),
        method=Agd(candidates=4, reach=1.0),
        training=Training(steps=5, learning_rate=1.0),
        seed=0,
    )
    data = Records(inputs, (inputs[:, 0] > 0).long())
    run = train(objective.module, objective.loss, data, settings, out=tmp_path / "run")
    assert read_ledger(run.folder.ledger).spending == run.plan.spending
    assert 7.9 < run.epsilon <= 8.0


def test_it_needs_a_price():
    with pytest.raises(InputError, match="first price"):
        Agd().begin(torch.zeros(2), schedule=Schedule(steps=1, batch=2, first_batch=2), stepper=ConstantStep(1.0))
