"""A finished run, read back: checked, and its model ready to use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_model
from torch import Tensor, nn

from dpsrm.accounting import Guarantee
from dpsrm.core.errors import InputError, LedgerError, need
from dpsrm.core.files import read_toml
from dpsrm.core.secret import Streams
from dpsrm.core.tracking import Track, silent
from dpsrm.runs import verify
from dpsrm.runs.folder import RunFolder
from dpsrm.training.config import build
from dpsrm.training.predict import chosen_classes, class_probabilities, outputs_of, predicted_numbers, range_from
from dpsrm.training.settings import Model


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadedRun:
    """What a run folder holds: the model with the published parameters, the guarantee that its ledger proves (None for
    a run without one), and the sections of its config.toml. `track` shows how far the features of images are."""

    module: nn.Module
    guarantee: Guarantee | None
    config: dict[str, Any]
    folder: RunFolder
    track: Track = silent

    def __repr__(self) -> str:
        """One line: where it is and what it proves."""
        return f"<LoadedRun {self.folder.path}: {'not private' if self.guarantee is None else self.guarantee}>"

    @property
    def epsilon(self) -> float:
        """The ε that the ledger proves; infinite for a run without privacy."""
        return float("inf") if self.guarantee is None else self.guarantee.epsilon

    @property
    def classes(self) -> list[str]:
        """The class names, in the order of the columns of `predict_proba`.

        Labels that were understood without being told (no/yes, -1/1, …) are called 0 and 1: which pair a file has is
        read from its records, and not published.
        """
        facts = self.config.get("preprocessing", {})
        number = facts.get("task") == "regression"
        need(not number, "a regression has no classes, and no probabilities of them", remedy="use predict (no --proba)")
        need("classes" in facts, "this run's config.toml names no classes", remedy="call run.module")
        return [str(name) for name in facts["classes"]]

    def outputs(self, data: object) -> Tensor:
        """The model's outputs for `data`, see `predict`."""
        return outputs_of(self.module, self.config, data, track=self.track)

    def predict(self, data: object) -> npt.NDArray[Any]:
        """The most probable class of each record, by name; or a regression's number, inside the target's public range.

        Args:
            data: a file as `dpsrm train` takes it, a pandas DataFrame, a dictionary of columns, an array, a tensor or
                a SciPy sparse matrix. Labels are not needed, and not looked at.

        Guarantee: records are encoded by config.toml's [preprocessing] alone; predictions equal those of the module in
        memory, bit for bit, for the same records.

        Edge cases: a missing or unknown column raises `InputError` with its name; unseen categories are fine.
        """
        return self._answers(self.outputs(data))

    def predict_proba(self, data: object) -> npt.NDArray[np.float64]:
        """The probability of each class (columns as in `classes`) for each record (rows); see `predict`."""
        need(bool(self.classes), "there must be classes")
        return class_probabilities(self.outputs(data))

    def prediction_columns(self, data: object, *, proba: bool = False) -> dict[str, list[Any]]:
        """`predict` as a column called prediction and, with `proba`, a column probability_NAME for each class."""
        names, outputs = self.classes if proba else [], self.outputs(data)
        shares = class_probabilities(outputs).T.tolist() if proba else []
        probabilities = {f"probability_{name}": share for name, share in zip(names, shares, strict=True)}
        return {"prediction": self._answers(outputs).tolist(), **probabilities}

    def _answers(self, outputs: Tensor) -> npt.NDArray[Any]:
        """What the outputs say: classes, or numbers."""
        numbers = range_from(self.config)
        return chosen_classes(outputs, self.classes) if numbers is None else predicted_numbers(outputs, numbers)


def load_run(run: Path | str, module: nn.Module | None = None, *, expect: str | None = None) -> LoadedRun:
    """Read a run folder back, after `verify` found nothing wrong with it.

    Args:
        run: the folder.
        module: what the parameters are loaded into; may be left out for a model of the command line.
        expect: the chain head that was written down when the run ended.

    Edge cases: `LedgerError` if the run does not verify; `InputError` if the module does not fit.
    """
    folder = RunFolder(Path(run))
    found = verify(folder.path, expect=expect)
    if not found.ok:
        raise LedgerError(f"{folder.path} does not verify: {'; '.join(found.problems)}")
    config = read_toml(folder.config)
    module = module if module is not None else _built(config)
    try:
        load_model(module, str(folder.model))
    except (RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"the module does not fit the parameters in {folder.model}: {str(error)[:300]}") from error
    return LoadedRun(module=module, guarantee=found.guarantee, config=config, folder=folder)


def _built(config: dict[str, Any]) -> nn.Module:
    """The module of a run of the command line, or of an estimator."""
    known = "model" in config and "preprocessing" in config
    need(known, "this run's model is not one of the command line", remedy="give the module too")
    facts, stream = config["preprocessing"], Streams.seeded(0).initialisation
    size = {"features": facts["features"], "classes": len(facts.get("classes", []))}
    return build(Model, config["model"], "model").build(**size, stream=stream)
