"""A finished run, read back: checked, and its model ready to use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, load_model
from torch import nn

from dpsrm.accounting import Guarantee
from dpsrm.core.errors import InputError, LedgerError, need
from dpsrm.core.randomness import Streams
from dpsrm.runs import verify
from dpsrm.runs.folder import RunFolder
from dpsrm.runs.toml import read_toml
from dpsrm.training.config import build
from dpsrm.training.models import Model


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """What a run folder holds: the model with the published parameters, the guarantee that its ledger proves (None for
    a run without one), and the sections of its config.toml."""

    module: nn.Module
    guarantee: Guarantee | None
    config: dict[str, Any]
    folder: RunFolder


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
    module = module if module is not None else _built(folder, config)
    try:
        load_model(module, str(folder.model))
    except (RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"the module does not fit the parameters in {folder.model}: {str(error)[:300]}") from error
    return LoadedRun(module=module, guarantee=found.guarantee, config=config, folder=folder)


def _built(folder: RunFolder, config: dict[str, Any]) -> nn.Module:
    """The module of a run of the command line, by the shapes of its parameters."""
    need("model" in config, "this run's model is not one of the command line", remedy="give the module too")
    weights = [value for value in load_file(folder.model).values() if value.ndim == 2]
    outputs, features = len(weights[-1]), weights[0].shape[1]
    model = build(Model, config["model"], "model")
    return model.build(features=features, classes=max(2, outputs), stream=Streams.seeded(0).initialisation)
