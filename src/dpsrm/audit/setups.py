"""What to prove, from a file: a user's Python file with a function `setup`, or a config as `dpsrm train` takes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dpsrm.core.errors import InputError, need
from dpsrm.core.files import read_toml
from dpsrm.core.secret import Streams
from dpsrm.data import load
from dpsrm.gradients import ModelLosses, PerExampleLoss
from dpsrm.training import Settings, config_from, loss_for
from dpsrm.training.defaults import Shape, with_defaults

_NAMES = ("model", "losses", "data", "settings")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What `prove` takes."""

    model: nn.Module
    losses: PerExampleLoss | ModelLosses
    data: Any
    settings: Settings


def read_setup(path: Path) -> Setup:
    """The setup that a file describes."""
    need(path.is_file(), "give a Python file with a function setup(), or a config.toml", got=str(path))
    return _from_config(path) if path.suffix == ".toml" else _from_python(path)


def _from_python(path: Path) -> Setup:
    """What `setup()` of the file returns: a dictionary with model, losses, data and settings."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    need(spec is not None and spec.loader is not None, "a setup is a Python file or a config.toml", got=str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, "setup", None)
    need(callable(made), "the file must define setup()", got=str(path), remedy=f"return a dict of {', '.join(_NAMES)}")
    found = made() if made is not None else {}
    good = isinstance(found, Mapping) and set(found) == set(_NAMES)
    need(good, f"setup() must return a dictionary of {', '.join(_NAMES)}", got=sorted(found) if good else type(found))
    need(isinstance(found["settings"], Settings), "settings must be dpsrm.Settings", got=type(found["settings"]))
    return Setup(**found)


def _from_config(path: Path) -> Setup:
    """The model, loss, records and settings of a config file of `dpsrm train`."""
    config = config_from(read_toml(path))
    place = config.data
    try:
        found = load(
            place.path,
            place.target,
            schema=place.schema,
            classes=place.classes,
            features=place.features,
            normalise=place.normalise,
            target_range=place.target_range,
        )
    except OSError as error:
        raise InputError(f"cannot read {place.path}: {error}") from error
    classes = len(found.classes)
    size = config.model.size(features=found.n_features, classes=classes)
    shape = Shape(n=len(found.records), classes=classes, kind=config.model.kind, parameters=size)
    stream = Streams.seeded(0).initialisation
    return Setup(
        model=config.model.build(features=found.n_features, classes=classes, stream=stream),
        losses=loss_for(classes),
        data=found.records,
        settings=with_defaults(config.settings, shape),
    )
