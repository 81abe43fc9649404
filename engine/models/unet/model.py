"""This is a serial U-Net in plain PyTorch, as diffusion models train it (Nichol and Dhariwal 2021; Dhariwal and Nichol
2021). It knows nothing of grids.

On the way down blocks halve the images, level by level; on the way up others double them again, and each of these takes
beside its input what one block on the way down gave, the last one first.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.data.colours import CHANNELS
from engine.models.transformer import SelfAttention
from engine.models.unet.config import GROUPS, UNetConfig

LONGEST_PERIOD = 10_000

Resample = Callable[[Tensor], Tensor]
Layer = TypeVar("Layer", bound=nn.Module)


class UNet(nn.Module):
    """It maps noisy images [B, 3, S, S] and their time steps [B] to [B, outputs, S, S]."""

    def __init__(self, shape: UNetConfig) -> None:
        super().__init__()
        self.time = TimeEmbedding(shape.base)
        self.conv_in = nn.Conv2d(CHANNELS, shape.base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        levels = list(zip(shape.channels, shape.sides, strict=True))
        stream, kept = shape.base, [shape.base]
        for channels, side in levels:
            if side != shape.image:
                self.down.append(Step(_resampling(shape, stream, half)))
                kept.append(stream)
            for _ in range(shape.blocks):
                self.down.append(Step(*_block(shape, stream, channels, attends=side in shape.attention)))
                stream = channels
                kept.append(stream)
        self.middle = Step(*_block(shape, stream, stream, attends=True), ResidualBlock(stream, stream, shape.base))
        for channels, side in reversed(levels):
            for number in range(shape.blocks + 1):
                layers = _block(shape, stream + kept.pop(), channels, attends=side in shape.attention)
                stream = channels
                if number == shape.blocks and side != shape.image:
                    layers.append(_resampling(shape, stream, double))
                self.up.append(Step(*layers))
        self.norm = nn.GroupNorm(GROUPS, stream)
        self.conv_out = _zeros(nn.Conv2d(stream, shape.outputs, 3, padding=1))

    def forward(self, x_BCHW: Tensor, steps_B: Tensor) -> Tensor:
        """Go down, keeping what each step gives, and up again, with what was kept."""
        embedding_BE = self.time(steps_B)
        x = self.conv_in(x_BCHW)
        kept = [x]
        for step in self.down:
            x = step(x, embedding_BE)
            kept.append(x)
        x = self.middle(x, embedding_BE)
        for step in self.up:
            x = step(torch.cat([x, kept.pop()], dim=1), embedding_BE)
        return self.conv_out(F.silu(self.norm(x)))


class Step(nn.ModuleList):
    """It runs its layers one after the other; of these residual blocks take the time step, too."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(layers)

    def forward(self, x_BCHW: Tensor, embedding_BE: Tensor) -> Tensor:
        for layer in self:
            x_BCHW = layer(x_BCHW, embedding_BE) if isinstance(layer, ResidualBlock) else layer(x_BCHW)
        return x_BCHW


def half(x_BCHW: Tensor) -> Tensor:
    """Take the mean of each 2 x 2 pixels."""
    return F.avg_pool2d(x_BCHW, 2)


def double(x_BCHW: Tensor) -> Tensor:
    """Repeat each pixel as 2 x 2."""
    return F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest")


def same(x_BCHW: Tensor) -> Tensor:
    """Leave images as they are."""
    return x_BCHW


class ResidualBlock(nn.Module):
    """It adds two convolutions to the stream; the time step scales and shifts what is between them, normed.

    resample: half, double or same, of the images before the first convolution, and of the stream.
    """

    def __init__(self, channels_in: int, channels: int, base: int, resample: Resample = same) -> None:
        super().__init__()
        self.resample = resample
        self.norm1 = nn.GroupNorm(GROUPS, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.embedding = nn.Linear(4 * base, 2 * channels)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = _zeros(nn.Conv2d(channels, channels, 3, padding=1))
        self.skip = nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1)

    def forward(self, x_BCHW: Tensor, embedding_BE: Tensor) -> Tensor:
        h = self.conv1(self.resample(F.silu(self.norm1(x_BCHW))))
        scale, shift = self.embedding(F.silu(embedding_BE))[:, :, None, None].chunk(2, dim=1)
        h = self.conv2(F.silu(self.norm2(h) * (1 + scale) + shift))
        return self.skip(self.resample(x_BCHW)) + h


class PixelAttention(nn.Module):
    """It adds to each pixel what it finds in all others of its image."""

    def __init__(self, channels: int, head_size: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.attention = SelfAttention(channels, head_size, causal=False)
        _zeros(self.attention.out)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        rows_BPC = self.norm(x_BCHW).flatten(2).transpose(1, 2)
        return x_BCHW + self.attention(rows_BPC).transpose(1, 2).view_as(x_BCHW)


class Halve(nn.Conv2d):
    """It halves images by a convolution that steps over every other pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, stride=2, padding=1)


class Double(nn.Conv2d):
    """It doubles images, and smooths them by a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return super().forward(double(x_BCHW))


class TimeEmbedding(nn.Module):
    """It maps time steps [B] to [B, 4 base]: waves of periods from 2 pi to 2 pi 10,000 steps, and two linear layers."""

    def __init__(self, base: int) -> None:
        super().__init__()
        self.base = base
        self.fc1 = nn.Linear(base, 4 * base)
        self.fc2 = nn.Linear(4 * base, 4 * base)

    def forward(self, steps_B: Tensor) -> Tensor:
        return self.fc2(F.silu(self.fc1(waves(steps_B, self.base).to(self.fc1.weight.dtype))))


def waves(steps_B: Tensor, features: int) -> Tensor:
    """Give cosines and sines of each step, [B, features] in float64 (Vaswani et al. 2017, 3.5)."""
    numbers_W = torch.arange(features // 2, dtype=torch.float64, device=steps_B.device)
    frequencies_W = torch.exp(-math.log(LONGEST_PERIOD) * numbers_W / len(numbers_W))
    angles_BW = steps_B.unsqueeze(1) * frequencies_W
    return torch.cat([angles_BW.cos(), angles_BW.sin()], dim=1)


def _block(shape: UNetConfig, channels_in: int, channels: int, *, attends: bool) -> list[nn.Module]:
    layers: list[nn.Module] = [ResidualBlock(channels_in, channels, shape.base)]
    return [*layers, PixelAttention(channels, shape.head_size(channels))] if attends else layers


def _resampling(shape: UNetConfig, channels: int, resample: Resample) -> nn.Module:
    if shape.resampling == "block":
        return ResidualBlock(channels, channels, shape.base, resample)
    return Halve(channels) if resample is half else Double(channels)


def _zeros(layer: Layer) -> Layer:
    """Let a layer begin as nothing, so that what it ends adds nothing to the stream."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
