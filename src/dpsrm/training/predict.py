"""From a run folder's public facts to predictions: the encoder and the classes that training wrote down.

Shapes: n records, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsrm.core.errors import need
from dpsrm.core.tracking import Track, silent
from dpsrm.data.encoders import encoder_from
from dpsrm.data.image_encoder import ImageEncoder
from dpsrm.data.ranges import TargetRange
from dpsrm.data.unlabelled import encode_unlabelled


def outputs_of(module: nn.Module, config: Mapping[str, Any], data: object, *, track: Track = silent) -> Tensor:
    """The module's outputs for records that are encoded by config's [preprocessing]: logits of the classes."""
    need(
        "preprocessing" in config,
        "only a run whose config.toml has [preprocessing] can encode records",
        remedy="this run was trained on tensors: encode the records as you did then, and call run.module",
    )
    facts, unit = config["preprocessing"], config.get("privacy", {}).get("unit")
    encoder = encoder_from(facts)
    if isinstance(encoder, ImageEncoder):
        encoder = replace(encoder, maker=replace(encoder.maker, track=track))
    inputs = encode_unlabelled(data, encoder, target=facts.get("target"), unit=unit)
    return module_outputs(module, inputs)


@torch.no_grad()
def module_outputs(module: nn.Module, inputs: npt.NDArray[np.float32]) -> Tensor:
    """The module's outputs for encoded records, images flat, layers with randomness at rest.

    All records go through the module at once, since a product of matrices may be rounded in another way for a part.
    """
    training = module.training
    try:
        return torch.as_tensor(module.eval()(torch.from_numpy(inputs).flatten(1)))
    finally:
        module.train(training)


def class_probabilities(outputs: Tensor) -> npt.NDArray[np.float64]:
    """Probabilities (n, K) of logits (n, K), or (n, 2) of one logit per record.

    >>> class_probabilities(torch.tensor([[0.0]])).tolist()
    [[0.5, 0.5]]
    """
    return _logits(outputs).softmax(dim=1).numpy()


def class_log_probabilities(outputs: Tensor) -> npt.NDArray[np.float64]:
    """The logarithms of `class_probabilities`, finite where those are too small to be written."""
    logarithms: npt.NDArray[np.float64] = _logits(outputs).log_softmax(dim=1).numpy()
    return logarithms


def chosen_classes(outputs: Tensor, classes: list[str]) -> npt.NDArray[np.str_]:
    """The name of the most probable class of each record; the first of equals.

    >>> chosen_classes(torch.tensor([[-1.0], [2.0]]), ["no", "yes"]).tolist()
    ['no', 'yes']
    """
    outputs_given = 2 if outputs.shape[1] == 1 else outputs.shape[1]
    need(
        outputs_given == len(classes),
        "the model must have an output per class",
        outputs=outputs_given,
        classes=classes,
    )
    names: npt.NDArray[np.str_] = np.array(classes, dtype=np.str_)[chosen_places(outputs)]
    return names


def chosen_places(outputs: Tensor) -> npt.NDArray[np.int64]:
    """The place of the most probable class of each record among the classes; the first of equals."""
    places: npt.NDArray[np.int64] = _logits(outputs).argmax(dim=1).numpy()
    return places


def predicted_numbers(outputs: Tensor, target_range: TargetRange) -> npt.NDArray[np.float64]:
    """The outputs (n, 1) of a regression in the target's own unit, inside its range.

    >>> predicted_numbers(torch.tensor([[0.0], [-9.0]]), TargetRange(10, 20)).tolist()
    [15.0, 10.0]
    """
    return target_range.unscaled(outputs.squeeze(1).numpy())


def range_from(config: Mapping[str, Any]) -> TargetRange | None:
    """The range of a run's numeric target, or None for a run with classes."""
    facts = config.get("preprocessing", {})
    return TargetRange(*facts["target_range"]) if facts.get("task") == "regression" else None


def _logits(outputs: Tensor) -> Tensor:
    """Logits (n, K) in double precision; one logit z stands for (0, z)."""
    logits = outputs.double()
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
