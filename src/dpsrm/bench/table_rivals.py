"""The rivals: DP-EBM, Opacus with Adam, and diffprivlib, each with the same public bounds and its own defaults.

All promise add/remove adjacency (diffprivlib: pure ε), which is weaker than ours: replacing one record.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpsrm.bench.public_tables import PublicTable
from dpsrm.bench.table_ours import DELTA, Found, answers_of, scores
from dpsrm.core.errors import need_extra
from dpsrm.training import loss_for

EPOCHS, BATCH = 10, 512
"""Of Opacus, which has no defaults for these; its examples have similar ones."""


def ebm(table: PublicTable, epsilon: float, seed: int) -> Found | None:
    """interpret's DP-EBM; it knows two classes, not more."""
    if table.classes > 2:
        return None
    need_extra("interpret", extra="compare")
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    bounds = {j: (float(a), float(b)) for j, (a, b) in enumerate(zip(*table.bounds, strict=True))}
    kinds = ["nominal" if is_text else "continuous" for is_text in table.categorical]
    options: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "privacy_bounds": bounds, "feature_types": kinds}
    options |= {"random_state": seed, "n_jobs": 1}
    start = time.process_time()
    if table.classes:
        model = DPExplainableBoostingClassifier(**options).fit(table.raw[0], table.targets[0])
        answers = model.predict_proba(table.raw[1])
    else:
        model = DPExplainableBoostingRegressor(**options, privacy_target_min=-1.0, privacy_target_max=1.0)
        answers = model.fit(table.raw[0], table.targets[0]).predict(table.raw[1])
    return {**scores(table, answers), "seconds": round(time.process_time() - start, 2)}


def opacus(table: PublicTable, epsilon: float, seed: int) -> Found:
    """Opacus: the same linear model and features, torch's Adam as it is, clip 1, 10 passes in batches of 512."""
    need_extra("opacus", extra="compare")
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    outputs = table.classes if table.classes > 2 else 1
    module: nn.Module = nn.Linear(table.encoded[0].shape[1], outputs)
    y = torch.from_numpy(np.array(table.targets[0], dtype=np.int64 if table.classes else np.float32))
    data = torch.utils.data.TensorDataset(torch.from_numpy(table.encoded[0]), y)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=BATCH)
    start = time.process_time()
    module, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.Adam(module.parameters()),
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=1.0,
    )
    _loop(module, optimizer, loader, loss_for(table.classes))
    found = scores(table, answers_of(module, table))
    return {**found, "seconds": round(time.process_time() - start, 2)}


def _loop(module: nn.Module, optimizer: Any, loader: Any, loss: Any) -> None:
    """Opacus' training loop."""
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            if len(inputs):
                optimizer.zero_grad()
                loss(module(inputs), targets).mean().backward()
                optimizer.step()


_DIFFPRIVLIB = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import LinearRegression, LogisticRegression, RandomForestClassifier
path, facts = sys.argv[1], json.loads(sys.argv[2])
file = np.load(path)
ends, epsilon, classes = (file["low"], file["high"]), facts["epsilon"], facts["classes"]
found = {}
for seed in facts["seeds"]:
    if classes:
        model = LogisticRegression(epsilon=epsilon, data_norm=1.0, random_state=seed).fit(file["encoded"], file["y"])
        found[f"logistic {seed}"] = model.predict_proba(file["encoded_test"])
        model = RandomForestClassifier(epsilon=epsilon, bounds=ends, classes=list(range(classes)), random_state=seed)
        found[f"forest {seed}"] = model.fit(file["raw"], file["y"]).predict_proba(file["raw_test"])
    else:
        model = LinearRegression(epsilon=epsilon, bounds_X=ends, bounds_y=(-1.0, 1.0), random_state=seed)
        found[f"linear {seed}"] = model.fit(file["raw"], file["y"]).predict(file["raw_test"])
np.savez(path, **found)
"""


@lru_cache(maxsize=2)
def _diffprivlib(table: PublicTable, epsilon: float, seeds: tuple[int, ...], python: Path) -> dict[str, Found]:
    """All of diffprivlib's models, in a Python of its own: it cannot be imported beside scikit-learn 1.9."""
    low, high = table.bounds
    arrays: dict[str, Any] = {"low": low, "high": np.where(high > low, high, low + 1), "y": table.targets[0]}
    for name, (train, test) in (("raw", table.raw), ("encoded", table.encoded)):
        arrays |= {name: train, f"{name}_test": test}
    facts = {"epsilon": epsilon, "seeds": seeds, "classes": table.classes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.npz")
        np.savez(path, **arrays)
        subprocess.run([str(python), "-c", _DIFFPRIVLIB, str(path), json.dumps(facts)], check=True)
        with np.load(path) as file:
            return {name: scores(table, file[name]) for name in file}


Rival = Callable[[PublicTable, float, int], Found | None]


def rivals(python: Path | None, seeds: int) -> dict[str, Rival]:
    """Each rival by its name, answering None for what it cannot do; diffprivlib only with a Python that has it."""

    def one(model: str) -> Rival:
        def answer(table: PublicTable, epsilon: float, seed: int) -> Found | None:
            found = _diffprivlib(table, epsilon, tuple(range(seeds)), Path(str(python)))
            return found.get(f"{model} {seed}")

        return answer

    others: dict[str, Rival] = {"DP-EBM": ebm, "Opacus Adam": opacus}
    if python is None:
        return others
    return others | {f"diffprivlib {model}": one(model) for model in ("logistic", "forest", "linear")}
