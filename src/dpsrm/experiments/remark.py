"""The paper's remark on the moments accountant, computed: who gives a guarantee for its settings, at how much noise.

The remark gives the moments accountant's curve for σ² ≥ 1 and α ≤ σ²·ln(1/(τσ)) as τ²α/((1−τ)σ²) + O(τ³α³/σ³). The
constant of the second part is not stated there, so the first part alone is no bound: its figures are marked as such.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpsrm.accounting import accountant, attack_epsilon, calibrate_noise
from dpsrm.core.errors import InputError
from dpsrm.core.events import Adjacency, Charge, GaussianRelease, Sampling, Scheme, Spending
from dpsrm.experiments.recipes import DELTA, papers_noise

BARE, MOMENTS, LEMMA = "Lemma 1, conditions ignored", "moments, first part only", "Lemma 1"
PROOFS = {
    LEMMA: ("paper", Scheme.WOR),
    "rdp9": ("rdp9", Scheme.WOR),
    "rdp": ("rdp", Scheme.WOR),
    "pld": ("pld", Scheme.WOR),
    "rdp, Poisson": ("rdp", Scheme.POISSON),
    "pld, Poisson": ("pld", Scheme.POISSON),
}
"""The accountants that prove what they say: name and sampling, all under replace-one."""

_ORDERS = np.arange(2, 4097, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of the paper's combinations of data, batch and ε, and how many releases it makes."""

    problem: str
    n: int
    batch: int
    epsilon: float
    steps: int

    def spend(self, noise: float, scheme: Scheme = Scheme.WOR) -> Spending:
        """What it releases with a given noise."""
        sampling = Sampling(scheme=scheme, population=self.n, batch=self.batch)
        charge = Charge(GaussianRelease(noise_multiplier=noise, sampling=sampling), self.steps)
        return Spending.of([charge], adjacency=Adjacency.REPLACE_ONE)


def settings() -> list[Setting]:
    """Every batch of the paper's grids at every ε.

    T is the paper's where it says one: 4 and 5 passes for logistic regression, 6800 and 26000 iterations for CNN6 at
    ε = 4 and 8. Where it does not it is ours: 10 passes for MNIST and CNN5, 6800 iterations for CNN6 at ε = 2.

    >>> len(settings())
    39
    """
    found = []
    for problem, n in (("a9a", 32561), ("ijcnn1", 49990)):
        found += _grid(problem, n, (50, 100, 200), passes={0.2: 4, 0.5: 5})
    found += _grid("MNIST", 60000, (256, 512, 1024), passes={1.2: 10, 3.0: 10, 7.0: 10})
    found += _grid("CNN5", 50000, (32, 64, 128), passes={6.0: 10, 8.0: 10, 10.0: 10})
    return found + _grid("CNN6", 50000, (64, 128, 256), iterations={2.0: 6800, 4.0: 6800, 8.0: 26000})


def _grid(
    problem: str,
    n: int,
    batches: Iterable[int],
    *,
    passes: Mapping[float, int] | None = None,
    iterations: Mapping[float, int] | None = None,
) -> list[Setting]:
    """Every batch at every ε, for some passes over the data or some iterations."""
    sizes = tuple(batches)
    by_passes = [(epsilon, b, round(count * n / b)) for epsilon, count in (passes or {}).items() for b in sizes]
    fixed = [(epsilon, b, count) for epsilon, count in (iterations or {}).items() for b in sizes]
    return [Setting(problem=problem, n=n, batch=b, epsilon=e, steps=steps) for e, b, steps in by_passes + fixed]


def moments_epsilon(rate: float, noise: float, steps: int, *, delta: float = DELTA) -> float:
    """ε by the first part of the moments accountant's curve, its conditions enforced; ∞ where they fail.

    Guarantee: none: the part that is left out has an unknown constant.

    >>> round(moments_epsilon(0.01, 4.0, 1000), 3)
    0.546
    """
    variance = noise**2
    if variance < 1 or rate * noise >= 1:
        return math.inf
    orders = _ORDERS[variance * math.log(1 / (rate * noise)) >= _ORDERS]
    if not orders.size:
        return math.inf
    return float(np.min(steps * rate**2 * orders / ((1 - rate) * variance) - math.log(delta) / (orders - 1)))


def moments_noise(setting: Setting) -> float | None:
    """The least noise on a ladder of 0.1 % from 1 on at which `moments_epsilon` is at most ε."""
    rate = setting.batch / setting.n
    for noise in np.geomspace(1, 1000, 6912):
        if moments_epsilon(rate, float(noise), setting.steps) <= setting.epsilon:
            return float(noise)
    return None


def row(setting: Setting) -> dict[str, Any]:
    """How much noise each accountant asks for, and which ε each gives at the paper's own noise (null: none)."""
    rate = setting.batch / setting.n
    bare = papers_noise(rate, setting.steps, setting.epsilon)
    told = {MOMENTS: moments_epsilon(rate, bare, setting.steps), "attack": attack_epsilon(setting.spend(bare), DELTA)}
    needed: dict[str, float | None] = {MOMENTS: moments_noise(setting), BARE: bare}
    for label, (name, scheme) in PROOFS.items():
        needed[label] = needed_noise(setting, name, scheme)
        told[label] = accountant(name).epsilon(setting.spend(bare, scheme), DELTA).epsilon
    finite = {label: value if math.isfinite(value) else None for label, value in told.items()}
    return {**asdict(setting), "noise": needed, "epsilon_at_papers_noise": finite}


def needed_noise(setting: Setting, name: str, scheme: Scheme) -> float | None:
    """The least noise with which an accountant proves ε; None if there is none."""

    def spend(noise: float) -> Spending:
        return setting.spend(noise, scheme)

    try:
        return calibrate_noise(spend, accountant=accountant(name), epsilon=setting.epsilon, delta=DELTA)
    except InputError:  # the paper's conditions hold at no noise: that is an answer here
        if name == "paper":
            return None
        raise


def kept_rows(path: Path) -> list[dict[str, Any]]:
    """The rows in a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def missing_settings(path: Path) -> list[Setting]:
    """The settings without a row yet."""
    names = ("problem", "n", "batch", "epsilon", "steps")
    done = {tuple(found[name] for name in names) for found in kept_rows(path)}
    return [setting for setting in settings() if tuple(asdict(setting)[name] for name in names) not in done]


def keep(path: Path, found: dict[str, Any]) -> None:
    """Add a row to the results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows as a Markdown table: noise needed, and in brackets the ε that the paper's noise really has."""
    labels = (BARE, LEMMA, MOMENTS, *(label for label in PROOFS if label != LEMMA))
    heads = ("setting (b, ε, T)", *labels, "ε at the paper's noise: pld", "attack")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for found in rows:
        name = f"{found['problem']} {found['batch']}, {found['epsilon']:g}, {found['steps']}"
        noises = [_text(found["noise"][label]) for label in labels]
        told = [_text(found["epsilon_at_papers_noise"][label]) for label in ("pld", "attack")]
        lines.append(f"| {' | '.join((name, *noises, *told))} |")
    return "\n".join(lines)


def _text(value: float | None) -> str:
    """Three digits, or none."""
    return "none" if value is None else f"{value:.3g}"
