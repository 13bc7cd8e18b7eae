"""Padding masks of `transformers`, made without asking whether an example pads anything.

To save a mask, transformers looks whether it would be empty: a branch on an example's values, which vmap refuses. It
lets others register how masks are made, and a mask that is always made gives the same attention.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_KINDS = ("eager", "sdpa")


@contextmanager
def masks_always_made() -> Iterator[None]:
    """Inside, transformers (if it is loaded) makes the masks of attention whether they are empty or not."""
    loaded = sys.modules.get("transformers.masking_utils")
    makers = getattr(loaded, "ALL_MASK_ATTENTION_FUNCTIONS", None)
    if makers is None:
        yield
        return
    before = {kind: makers[kind] for kind in _KINDS if kind in makers}
    try:
        makers.update({kind: _always(make) for kind, make in before.items()})
        yield
    finally:
        makers.update(before)


def _always(make: Callable[..., Any]) -> Callable[..., Any]:
    """A maker of masks that skips none; without a padding mask there is nothing to branch on."""

    def made(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("attention_mask") is not None:
            kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return make(*args, **kwargs)

    return made
