"""The rules of layers that normalise, then scale and shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from dpsrm.gradients.ghost.rules import Terms, channel_sums, rule
from dpsrm.gradients.ghost.terms import Rows


def _scale_and_shift(g: Tensor, normalised: Callable[[], Tensor], keep: Callable[[Tensor], Tensor]) -> Terms:
    """y = scale·normalised + shift; `keep` sums over what one scale serves."""
    return {"weight": Rows(lambda: keep(g * normalised())), "bias": Rows(lambda: keep(g))}


@rule(F.layer_norm, leading=True)
def layer_norm(
    g: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Terms:
    """Normalised over the last dimensions."""
    return _scale_and_shift(
        g, lambda: F.layer_norm(x, normalized_shape, None, None, eps), lambda t: _last(t, len(normalized_shape))
    )


@rule(F.rms_norm, leading=True)
def rms_norm(
    g: Tensor, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Terms:
    """Divided by the root of the mean square over the last dimensions."""
    return _scale_and_shift(
        g, lambda: F.rms_norm(x, normalized_shape, None, eps), lambda t: _last(t, len(normalized_shape))
    )


def _last(t: Tensor, dimensions: int) -> Tensor:
    """Summed over the positions, all but the first and the last dimensions."""
    middle = tuple(range(1, t.dim() - dimensions))
    return t.sum(middle) if middle else t


@rule(F.group_norm)
def group_norm(
    g: Tensor, x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Terms:
    """Normalised over groups of channels."""
    return _scale_and_shift(g, lambda: _folded(lambda t: F.group_norm(t, num_groups, None, None, eps), x), channel_sums)


def _folded(normalise: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(B, K, C, ...) normalised as B·K images."""
    return normalise(x.flatten(0, 1)).view(x.shape)


@rule(F.instance_norm)
def instance_norm(
    g: Tensor,
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Terms:
    """Normalised over each channel of each example."""

    def normalised() -> Tensor:
        if use_input_stats:
            return _folded(lambda t: F.instance_norm(t, use_input_stats=True, eps=eps), x)
        return _folded(lambda t: F.instance_norm(t, running_mean, running_var, use_input_stats=False, eps=eps), x)

    return _scale_and_shift(g, normalised, channel_sums)


@rule(F.batch_norm, fits=lambda call: not call["training"])
def fixed_batch_norm(
    g: Tensor,
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Terms:
    """Normalised by statistics that are fixed."""
    normalised = _folded(lambda t: F.batch_norm(t, running_mean, running_var, eps=eps), x)
    return _scale_and_shift(g, lambda: normalised, channel_sums)
