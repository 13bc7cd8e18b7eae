"""The paper's networks. The paper uses ReLU; tanh, which suits clipped gradients better, makes rows of its own.

So does another start for ReLU: the paper does not say how it begins, and torch's own start is small for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dpsrm.core.errors import need

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}

CNN6_FILTERS = (32, 64, 128)
CNN6_FEATURES = 128 * 4 * 4
"""Numbers that CNN6's convolutions make of an image of 32 × 32."""


def cnn4(activation: str = "relu") -> nn.Sequential:
    """The paper's MNIST network: conv 16@8×8 s2 p3, pool 2 s1, conv 32@4×4 s2, pool 2 s1, fc 32, fc 10.

    >>> sum(p.numel() for p in cnn4().parameters())
    26010
    """
    act = _activation(activation)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, 3), act(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), act(), nn.MaxPool2d(2, 1), nn.Flatten()),
        *(nn.Linear(512, 32), act(), nn.Linear(32, 10)),
    )


def cnn5(activation: str = "relu") -> nn.Sequential:
    """The paper's CIFAR network: conv 6@5, pool 2, conv 16@5, pool 2, fc 120, 84, 10.

    >>> sum(p.numel() for p in cnn5().parameters())
    62006
    """
    act = _activation(activation)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), act(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), act(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), act(), nn.Linear(120, 84), act(), nn.Linear(84, 10)),
    )


def cnn6_trunk(*, normalised: bool = False) -> nn.Sequential:
    """CNN6's convolutions, of 32, 64 and 128 filters: each 3 × 3, pool 2, ReLU; then flat. Pretrained, then frozen.

    The paper gives the numbers of filters only. `normalised` puts batch norm behind each convolution, for pretraining
    on public records; it is folded into the weights before a private record is seen.
    """
    layers: list[nn.Module] = []
    channels = 3
    for filters in CNN6_FILTERS:
        layers.append(nn.Conv2d(channels, filters, 3, padding=1))
        layers += [nn.BatchNorm2d(filters)] if normalised else []
        layers += [nn.MaxPool2d(2), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def cnn6_head(activation: str = "relu", *, features: int = CNN6_FEATURES) -> nn.Sequential:
    """CNN6's three fully connected layers, of 64, 32 and 10 units: what is trained privately."""
    act = _activation(activation)
    return nn.Sequential(nn.Linear(features, 64), act(), nn.Linear(64, 32), act(), nn.Linear(32, 10))


def he_start(network: nn.Sequential) -> nn.Sequential:
    """The network with the start of He et al. (2015) for ReLU: weights of variance 2/fan-in, biases of zero.

    The last layer, which no ReLU follows, keeps torch's weights.
    """
    layers = [layer for layer in network if isinstance(layer, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        if layer is not layers[-1]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module with torch's own start, drawn from `seed`; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def _activation(name: str) -> Callable[[], nn.Module]:
    """The activation's class."""
    need(name in ACTIVATIONS, f"the activation must be one of {', '.join(ACTIVATIONS)}", activation=name)
    return ACTIVATIONS[name]
