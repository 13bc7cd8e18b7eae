"""What nobody but `step` may move in one's own loop: parameters, which of them are trained, the optimizer's memory.

A momentum that met a gradient without noise carries it into every later θ, also where the learning rate was 0 at that
moment (a warm-up) and the parameters did not move. Some optimizers keep it where nobody else sees it (an attribute, a
param group, `.data`; torch's fused SGD does not count its writes). So while a run is open, the optimizer itself refuses
gradients that `step` did not give.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dpsrm.core.errors import InputError, need
from dpsrm.core.tree import leaves
from dpsrm.gradients import Layout, Objective

_log = logging.getLogger(__name__)
_MOVED = (
    "take backward() and step() of the loop's own out of it and begin again, or go back to a state of before "
    "(load_state_dict, resume=True); load weights, and the optimizer's state, before make_private"
)
_CHOSEN = "freeze and unfreeze before make_private; what is trained next is a run of its own, whose ε adds"


_OURS = (
    "only step() may give the optimizer gradients while a private run is open; nothing was moved; take backward() and "
    "step() of the loop's own out of it"
)


_STEPPING: list[torch.optim.Optimizer | None] = []
"""The optimizers that private runs are stepping at this moment."""


class Untouched:
    """Tells whether the loop left model and optimizer as the last step did.

    Attributes:
        let_go: called when the run ends: from then on the optimizer takes any gradients.
    """

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer | None) -> None:
        """Of the user's model and optimizer, if it is the user's."""
        self._objective, self._optimizer = objective, optimizer
        self.let_go: Callable[[], None] = lambda: None
        if optimizer is not None:
            self.let_go = optimizer.register_step_pre_hook(self._need_ours).remove
        self.look()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside, the optimizer is stepped by the run; by this one or, where another was left open, by that."""
        _STEPPING.append(self._optimizer)
        try:
            yield
        finally:
            _STEPPING.remove(self._optimizer)
            self.look()

    def _need_ours(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse gradients, or a function that makes some, from anybody but the run."""
        held = (p for group in optimizer.param_groups for p in group["params"])
        closure = len(args) > 1 or kwargs.get("closure") is not None
        ours = any(each is optimizer for each in _STEPPING)
        if not ours and (closure or any(p.grad is not None for p in held)):
            raise InputError(_OURS)

    def look(self) -> None:
        """Keep how a step left the optimizer."""
        self._left = self._memory()

    def need(self, theta_P: Tensor) -> None:
        """Refuse to go on from anything but θ and what was kept."""
        module, layout = self._objective.module, self._objective.layout
        same = layout.held_by(module, theta_P)
        need(same, "only step() may move the model's parameters", remedy=_MOVED)
        self.need_memory()
        now, then = Layout.of(module).names, layout.names
        rule = "the parameters that are trained are those of make_private"
        need(now == then, rule, changed=sorted({*now} ^ {*then})[:5], remedy=_CHOSEN)

    def need_memory(self) -> None:
        """Refuse an optimizer that somebody else moved."""
        now = self._memory()
        same = len(now) == len(self._left) and all(map(_same, now, self._left))
        need(same, "only step() may change what the optimizer remembers", remedy=_MOVED)

    def _memory(self) -> list[tuple[Any, int]]:
        """Everything the optimizer remembers, and how often each tensor of it was written."""
        states = [] if self._optimizer is None else list(self._optimizer.state.values())
        return [(leaf, _writes(leaf)) for leaf in leaves(states)]


def need_gradients() -> None:
    """Refuse to draw or step in inference mode, whose tensors can never have gradients."""
    remedy = "go through the loader outside of it; evaluation may be inside"
    need(not torch.is_inference_mode_enabled(), "torch.inference_mode() has no gradients", remedy=remedy)


def tell_stepped(optimizer: torch.optim.Optimizer | None) -> None:
    """Warn of an optimizer that stepped before the run begins: nobody knows on what, and nothing charged for it."""
    states = [] if optimizer is None else [state for state in optimizer.state.values() if state]
    if any(float(state.get("step", 1)) > 0 for state in states):  # Adagrad's begin with step 0
        _log.warning(
            "the optimizer has made steps before: they, and the weights that the model begins with, are outside of the "
            "guarantee; if private records were in them, begin with a new model and a new optimizer"
        )


def _writes(leaf: Any) -> int:
    """How often a tensor was written, as torch counts."""
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def _same(now: tuple[Any, int], then: tuple[Any, int]) -> bool:
    """Whether a leaf is what it was."""
    (value, writes), (before, wrote) = now, then
    return writes == wrote and (value is before or (not isinstance(value, Tensor) and bool(value == before)))
