"""Attention masks of transformers, built without asking what is in them.

The package leaves a mask out if it hides nothing, which it finds out from the mask's values. Under vmap there is one
answer for all examples, so it cannot be asked: here the mask is built then, which gives the same attention.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

_KINDS = ("sdpa", "eager")
_taught: dict[str, Callable[..., Any]] = {}
"""What was registered here."""


def build_masks_always(module: nn.Module) -> None:
    """Teach transformers, if the module is made of it, to build masks whose values cannot be asked for."""
    if not any(type(layer).__module__.startswith("transformers.") for layer in module.modules()):
        return
    masking: Any = sys.modules.get("transformers.masking_utils")
    if masking is None:
        return
    for kind in _KINDS:
        known = masking.ALL_MASK_ATTENTION_FUNCTIONS[kind]
        if known is not _taught.get(kind):
            _taught[kind] = _without_asking(known)
            masking.AttentionMaskInterface.register(kind, _taught[kind])


def _without_asking(build: Callable[..., Any]) -> Callable[..., Any]:
    """`build`, and where it may not look at the mask, once more without looking."""

    @wraps(build)
    def built(*args: Any, **kwargs: Any) -> Any:
        try:
            return build(*args, **kwargs)
        except RuntimeError:
            return build(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    return built
