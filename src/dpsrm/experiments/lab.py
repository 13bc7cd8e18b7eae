"""Where experiments find data and keep results: one line of JSON per trial, found again by what decides its outcome."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpsrm.core.errors import need
from dpsrm.experiments.pretraining import TRUNKS
from dpsrm.experiments.recipes import Recipe


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Processor seconds on one thread: of planning a run (its noise is calibrated), and of one step."""

    planning: float
    step: float

    def of(self, steps: float) -> float:
        """Of a whole run."""
        return self.planning + steps * self.step


@dataclass(frozen=True)
class Lab:
    """Where data is and results go: one line of JSON per trial, in a file per problem."""

    data: Path
    results: Path

    def knows(self, problem: str) -> bool:
        """Whether there are trials of a problem."""
        return self._file(problem).exists()

    def read(self, problem: str, recipe: Recipe) -> list[dict[str, Any]]:
        """The trials done so far, in the order of their seeds.

        Their seconds are those measured side by side with other rows', where that was done: see timing.py.
        """
        trials, cost = self._all(problem).get(recipe.key, {}), self._costs(problem).get(recipe.key)
        found = [trials[seed] for seed in sorted(trials)]
        return found if cost is None else [{**trial, "seconds": cost.of(trial["steps"])} for trial in found]

    def keep_costs(self, problem: str, costs: Mapping[str, Cost]) -> None:
        """Keep what runs cost, by their recipes' keys, instead of what was kept before."""
        told = {
            key: {name: float(f"{value:.6g}") for name, value in asdict(cost).items()} for key, cost in costs.items()
        }
        path = self._costs_file(problem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def _costs(self, problem: str) -> dict[str, Cost]:
        """What was measured side by side; nothing if it was not."""
        path = self._costs_file(problem)
        if not path.exists():
            return {}
        return {key: Cost(**each) for key, each in json.loads(path.read_text(encoding="utf-8")).items()}

    def _all(self, problem: str) -> dict[str, dict[int, dict[str, Any]]]:
        """All trials of a problem by recipe and seed."""
        path = self._file(problem)
        if not path.exists():
            return {}
        facts = path.stat()
        return _trials(path, facts.st_mtime_ns, facts.st_size)

    def bring_trunk(self) -> None:
        """Copy the pretrained trunk that is kept beside the results to the data folder, unless one is there."""
        for kept in sorted(self.results.glob(f"{TRUNKS}/trunk-*.safetensors")):
            there = self.data / TRUNKS / kept.name
            if not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(kept, there)

    def need_same_trunk(self, problem: str, trunk: str) -> None:
        """Refuse to add trials on another pretrained trunk: rows on two trunks cannot stand in one table."""
        known = {trial.get("trunk", "") for trials in self._all(problem).values() for trial in trials.values()}
        need(
            known <= {trunk},
            "trials of one table need one pretrained trunk",
            results=", ".join(sorted(known)),
            data=trunk,
            remedy=f"take {TRUNKS} out of the data folder: then the trunk beside the results is used; or use "
            "other --results",
        )

    def add(self, problem: str, recipe: Recipe, trials: Iterable[dict[str, Any]]) -> None:
        """Keep further trials."""
        path, facts = self._file(problem), asdict(recipe)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"recipe": facts, **_finite(trial)}, separators=(",", ":")) + "\n" for trial in trials]
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + "".join(lines))

    def _costs_file(self, problem: str) -> Path:
        """The file of what a problem's runs cost."""
        return self.results / f"{problem}-seconds.json"

    def _file(self, problem: str) -> Path:
        """The file of a problem's trials."""
        return self.results / f"{problem}.jsonl"


def _finite(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial with null for what is no longer a number, which JSON cannot say."""
    lost = (name for name, value in trial.items() if isinstance(value, float) and not math.isfinite(value))
    return {**trial, **dict.fromkeys(lost)}


@lru_cache(maxsize=4)
def _trials(path: Path, changed: int, size: int) -> dict[str, dict[int, dict[str, Any]]]:
    """A file's trials by recipe and seed, read once as long as the file stays the same, without a torn last line."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            trial = json.loads(line)
        except ValueError:
            continue
        found.setdefault(Recipe(**trial.pop("recipe")).key, {})[trial["seed"]] = trial
    return found
