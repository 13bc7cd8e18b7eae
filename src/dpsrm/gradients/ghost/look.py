"""The first look at a module, on one example: whether it can be recorded, and how much an example records.

What it finds depends on the shape of an example and on the module, not on any example's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from dpsrm.core.errors import DpsrmError, IsolationError, need
from dpsrm.gradients.batch import Batch
from dpsrm.gradients.ghost.calls import Key
from dpsrm.gradients.ghost.kept import NotKeptError, Shown
from dpsrm.gradients.ghost.recording import Recording, record
from dpsrm.gradients.ghost.terms import Rows
from dpsrm.gradients.objective import Objective, Way
from dpsrm.gradients.places import probes
from dpsrm.gradients.torch_state import rng_states, set_rng_states

_NO_WAY_BACK = "a module's backward hooks do not run where gradients are found without the module's way back"
_REMOVE = 'remove them, or performance.engine = "loop"'


@dataclass(frozen=True)
class Look:
    """Whether the module can be recorded; `reason` says why not, and is empty if it can.

    `shown` are the calls that must be shown while they run (see kept.py); None: all. `shared` are those whose input is
    the same at all points; None: nobody has asked at several points yet.
    `numbers` is how many numbers one recorded example keeps alive at one point, `rows` how many its written-out
    gradients have: of what is derived from parameters, copied for each example, or summed over positions.
    """

    reason: str = ""
    numbers: int = 0
    rows: int = 0
    shown: Shown = None
    shared: frozenset[Key] | None = None

    @property
    def once(self) -> tuple[Shown, frozenset[Key] | None]:
        """What is decided once for all passes."""
        return self.shown, self.shared


def need_recordable(module: nn.Module) -> None:
    """Refuse what no clipped sum can be promised of: short parameters, embeddings that rescale themselves, hooks."""
    for name, parameter in module.named_parameters():
        need(
            not parameter.requires_grad or parameter.dtype in (torch.float32, torch.float64),
            "trainable parameters must be float32 or float64: shorter ones cannot hold a clip's bound",
            parameter=name,
            dtype=parameter.dtype,
            remedy="call module.float() first",
        )
    everywhere = modules._global_backward_hooks, modules._global_backward_pre_hooks
    need(not any(everywhere), _NO_WAY_BACK, layer="every layer (register_module_…)", remedy=_REMOVE)
    for name, layer in module.named_modules():
        fixed = not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) or layer.max_norm is None
        need(fixed, "an embedding must not rescale its own weights", layer=name, remedy="leave out max_norm")
        need(
            not layer._backward_hooks and not layer._backward_pre_hooks,
            _NO_WAY_BACK,
            layer=name or type(layer).__name__,
            remedy=_REMOVE,
        )


def look(objective: Objective, point_P: Tensor, one: Batch) -> Look:
    """Record one example and see what leaks."""
    state = rng_states()
    try:
        first, shown = _first(objective, point_P, one)
        if first.leaks:
            need_rules(objective, first.leaks)
            return Look(f"no rule for the use of {', '.join(first.leaks)}")
        terms = first.terms()
        for found in terms.values():
            [term.rows() for term in found if len(found) > 1]
    except IsolationError as error:
        if objective.way is not Way.VMAP:
            raise
        return Look(_short(error))
    except DpsrmError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        return Look(_short(error))
    finally:
        set_rng_states(state)
    written = [found for found in terms.values() if any(isinstance(term, Rows) for term in found)]
    return Look(numbers=first.numbers, rows=sum(found[0].rows().shape[1] for found in written), shown=shown)


def sharing(found: Look, objective: Objective, like_P: Tensor, one: Batch) -> Look:
    """What is known, and the calls whose input is the same at two points, with numbers that are nobody's.

    What a module computes may be the same by chance, if it rounds. Were that seen for each batch, one example would
    decide by which products the gradients of all others are computed, to the last bit.
    """
    state, draw = rng_states(), torch.Generator("cpu").manual_seed(0)
    recordings: list[Recording] = []
    try:
        ((_, made),) = islice(probes((), one), 1)
        for _ in range(0 if found.reason else 2):
            set_rng_states(state)
            point_P = torch.randn(len(like_P), generator=draw, dtype=like_P.dtype, device="cpu").mul_(0.3)
            first = recordings[0] if recordings else None
            recordings.append(record(objective, point_P.to(like_P.device), made, first=first, shown=found.shown))
    except Exception:  # numbers that are nobody's may not suit the module
        recordings = []
    finally:
        set_rng_states(state)
    return replace(found, shared=recordings[1].like(recordings[0]) if recordings else frozenset())


def _first(objective: Objective, point_P: Tensor, one: Batch) -> tuple[Recording, Shown]:
    """A first recording, with as few calls shown as can be."""
    shown: Shown = frozenset()
    for _ in range(2):
        try:
            return record(objective, point_P, one, shown=shown), shown
        except NotKeptError as error:
            shown = error.keys
        except Exception:  # what is wrong is said of a recording in which all calls are shown
            break
    return record(objective, point_P, one), None


def _short(error: Exception) -> str:
    """The beginning of what went wrong."""
    return str(error.__cause__ or error)[:200]


def need_rules(objective: Objective, leaks: Sequence[str]) -> None:
    """Refuse a batched pass in which a parameter is used as no rule knows: only vmap could help there."""
    if objective.way is Way.BATCH:
        raise IsolationError(
            f'isolation = "checked" needs a rule for every use of a parameter, with the examples in the first '
            f'dimension; there is none for {", ".join(leaks)}; use performance.engine = "loop"'
        )
