"""Image models that people bring, written here: GroupNorm ResNets, ConvNeXt, U-Net, VAE. No layer looks at a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_GROUPS = 8


class Standardised(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 before they are used (weight standardisation)."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve with the standardised filters."""
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        spread = self.weight.var((1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (spread + 1e-5).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def _norm(channels: int) -> nn.Module:
    """GroupNorm, which looks at one example only."""
    return nn.GroupNorm(min(_GROUPS, channels), channels)


class Residual(nn.Module):
    """Norm, ReLU, convolution, twice, around a shortcut (the order of wide residual networks)."""

    def __init__(self, inside: int, outside: int, stride: int, conv: type[nn.Conv2d] = nn.Conv2d) -> None:
        """The shortcut is a convolution where the shape changes."""
        super().__init__()
        self.first, self.second = _norm(inside), _norm(outside)
        self.conv1 = conv(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = conv(outside, outside, 3, 1, 1, bias=False)
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else conv(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        h = self.conv1(F.relu(self.first(x)))
        out: Tensor = self.shortcut(x) + self.conv2(F.relu(self.second(h)))
        return out


def residual_network(
    widths: Sequence[int], blocks: int, *, classes: int = 10, conv: type[nn.Conv2d] = nn.Conv2d
) -> nn.Module:
    """A stem, `blocks` residual blocks of each width (halving the image between widths), and a linear head."""
    layers: list[nn.Module] = [conv(3, widths[0], 3, 1, 1, bias=False)]
    inside = widths[0]
    for stage, width in enumerate(widths[1:]):
        for block in range(blocks):
            layers.append(Residual(inside, width, 2 if stage > 0 and block == 0 else 1, conv))
            inside = width
    head = (_norm(inside), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    return nn.Sequential(*layers, *head)


class NextBlock(nn.Module):
    """ConvNeXt: a depthwise 7 × 7 convolution, LayerNorm over channels, two linear layers, a gain, a shortcut."""

    def __init__(self, width: int) -> None:
        """Build the layers; the gain starts small."""
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        h: Tensor = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.narrow(F.gelu(self.wide(h))).permute(0, 3, 1, 2)
        return x + h * self.gain.reshape(1, -1, 1, 1)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel."""

    def forward(self, x: Tensor) -> Tensor:
        """Channels last, and back."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(widths: Sequence[int], depths: Sequence[int], *, classes: int = 10) -> nn.Module:
    """A patch stem, stages of blocks with halving convolutions between them, and a linear head."""
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 2, 2), ChannelNorm(widths[0])]
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage > 0:
            layers += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
        layers += [NextBlock(width) for _ in range(depth)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes))
    return nn.Sequential(*layers, *head)


class UNet(nn.Module):
    """Two halvings and two transposed convolutions back, joined across; a class for every pixel."""

    def __init__(self, width: int, classes: int = 5) -> None:
        """Build the layers."""
        super().__init__()
        self.down1, self.down2 = self._twice(3, width), self._twice(width, 2 * width)
        self.bottom = self._twice(2 * width, 4 * width)
        self.up2, self.up1 = (nn.ConvTranspose2d(k * width, k * width // 2, 2, 2) for k in (4, 2))
        self.join2, self.join1 = self._twice(4 * width, 2 * width), self._twice(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _twice(inside: int, outside: int) -> nn.Module:
        """Two convolutions with norms."""
        pair = ((inside, outside), (outside, outside))
        return nn.Sequential(
            *(layer for i, o in pair for layer in (nn.Conv2d(i, o, 3, padding=1), _norm(o), nn.ReLU()))
        )

    def forward(self, x: Tensor) -> Tensor:
        """The scores of every pixel, (B, classes, H, W)."""
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        h = self.up2(self.bottom(F.max_pool2d(two, 2)))
        h = self.up1(self.join2(torch.cat([h, two], 1)))
        scores: Tensor = self.head(self.join1(torch.cat([h, one], 1)))
        return scores


class VAE(nn.Module):
    """A variational autoencoder of images; its loss per example is reconstruction plus divergence."""

    def __init__(self, pixels: int, hidden: int, latent: int) -> None:
        """Build encoder and decoder."""
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def forward(self, x: Tensor) -> Tensor:
        """The loss of every example, with one draw of the latent; drawn in float32, whatever the weights are."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        draw = torch.randn(mean.shape, device=mean.device).to(mean.dtype)
        found = self.decoder(mean + (0.5 * log_variance).exp() * draw)
        far = F.binary_cross_entropy_with_logits(found, x.flatten(1).sigmoid(), reduction="none").sum(1)
        divergence: Tensor = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return far + divergence
