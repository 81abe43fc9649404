"""Serial U-Net in plain PyTorch, as diffusion models train it (Nichol and Dhariwal 2021; Dhariwal and Nichol 2021).

On the way down steps halve the images, level by level; on the way up others double them again, and each of these takes
beside its input what one step on the way down gave, the last one first.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.data import CHANNELS
from engine.layers.conv2d import Joining, Skip
from engine.layers.dropout import PixelDropout
from engine.layers.embedding import WaveLinear
from engine.layers.group_norm import ScaledGroupNorm
from engine.layers.passes import Pass
from engine.layers.redistribute import Redistribute
from engine.models.serial import SerialModel, State
from engine.models.transformer import SelfAttention
from engine.models.unet.config import GROUPS, Resampling, UNetConfig, UNetStep

Resample = Callable[[Tensor], Tensor]


def half(x_BCHW: Tensor) -> Tensor:
    """Take the mean of each 2 x 2 pixels."""
    return F.avg_pool2d(x_BCHW, 2)


def double(x_BCHW: Tensor) -> Tensor:
    """Repeat each pixel as 2 x 2."""
    return F.interpolate(x_BCHW, scale_factor=2.0, mode="nearest")


def same(x_BCHW: Tensor) -> Tensor:
    return x_BCHW


RESAMPLE: dict[Resampling | None, Resample] = {None: same, "half": half, "double": double}


class UNet(SerialModel):
    """U-Net from noisy images [B, 3, S, S] and their time steps [B] to [B, channels_out, S, S]."""

    def __init__(self, shape: UNetConfig) -> None:
        super().__init__(shape.task)
        self.time = TimeEmbedding(shape.base, sines_first=shape.sines_first, scale=shape.steps_scale)
        self.conv_in = nn.Conv2d(CHANNELS, shape.base, 3, padding=1)
        self.blocks = nn.ModuleList(StepBlock(shape, step, number) for number, step in enumerate(shape.steps))
        self.norm = nn.GroupNorm(GROUPS, shape.steps[-1].channels, shape.norm_eps)
        self.conv_out = nn.Conv2d(shape.steps[-1].channels, shape.channels_out, 3, padding=1)

    def begin(self, noisy_BCHW: Tensor, steps_B: Tensor, *, at: Pass) -> State:  # type: ignore[override]
        """Return the stream and the time steps' embedding."""
        return self.conv_in(noisy_BCHW.to(self.conv_in.weight.dtype)), self.time(steps_B)

    def end(self, state: State, at: Pass) -> Tensor:
        """Compute the noise of the last stream."""
        return self.conv_out(F.silu(self.norm(state[0])))


class StepBlock(nn.Module):
    """Residual block, or convolution that resamples; then attention, if pixels attend."""

    def __init__(self, shape: UNetConfig, step: UNetStep, number: int) -> None:
        super().__init__()
        self.takes, self.leaves = step.takes > 0, step.leaves
        self.residual = self.resampling = self.attention = None
        if step.convolves:
            self.resampling = Convolved(step.channels, step.resampling, pads_after=shape.padding == "after")
        else:
            self.residual = ResidualBlock(shape, step.joined, step.channels, RESAMPLE[step.resampling], number)
        if step.attends:
            self.attention = PixelAttention(step.channels, shape.head_size(step.channels), shape.norm_eps)

    def forward(self, state: State, at: Pass) -> State:
        """Map the stream, the embedding and all that was left to the same for the next step."""
        x, embedding_BE, *left = state
        if self.leaves:
            left.append(x)
        if self.takes:
            x = torch.cat([x, left.pop()], dim=1)
        if self.residual is not None:
            x = self.residual(x, embedding_BE, at)
        if self.resampling is not None:
            x = self.resampling(x)
        if self.attention is not None:
            x = self.attention(x, at)
        return x, embedding_BE, *left


class ResidualBlock(nn.Module):
    """Sum of the stream and two convolutions of it, between which the time step scales and shifts, or shifts alone.

    resample: half, double or neither, of the images before the first convolution, and of the stream. number: of the
    network's step.
    """

    def __init__(self, shape: UNetConfig, channels_in: int, channels: int, resample: Resample, number: int) -> None:
        super().__init__()
        self.resample, self.scales = resample, shape.scales
        self.norm1 = nn.GroupNorm(GROUPS, channels_in, shape.norm_eps)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.embedding = nn.Linear(4 * shape.base, (2 if shape.scales else 1) * channels)
        self.norm2 = (ScaledGroupNorm if shape.scales else nn.GroupNorm)(GROUPS, channels, shape.norm_eps)
        self.skip = None if channels_in == channels else Skip(channels_in, channels, 1)
        self.dropout = PixelDropout(shape.dropout, number)
        self.conv2 = Joining(channels, channels, 3, padding=1)

    def forward(self, x_BCHW: Tensor, embedding_BE: Tensor, at: Pass) -> Tensor:
        x = self.resample(x_BCHW)
        h = self.conv1(self.resample(F.silu(self.norm1(x_BCHW))))
        of_step = self.embedding(embedding_BE)
        h = self.norm2(h, *of_step.chunk(2, dim=1)) if self.scales else self.norm2(h + of_step[:, :, None, None])
        h = self.dropout(F.silu(h), at)
        return x + self.conv2(h) if self.skip is None else self.conv2(h, self.skip(x))


class PixelAttention(nn.Module):
    """Sum of each pixel and its attention to all others of its image."""

    def __init__(self, channels: int, head_size: int, norm_eps: float) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels, norm_eps)
        self.attention = SelfAttention(channels, head_size, causal=False)

    def forward(self, x_BCHW: Tensor, at: Pass) -> Tensor:
        rows_BPC = self.norm(x_BCHW).flatten(2).transpose(1, 2)
        return x_BCHW + self.attention(rows_BPC, at).transpose(1, 2).view_as(x_BCHW)


class Convolved(nn.Module):
    """Convolution that halves images by stepping over every other pixel, or smooths doubled ones.

    pads_after: whether what halves has its zeros at the right and below, and none before the first pixels.
    """

    def __init__(self, channels: int, by: Resampling | None, *, pads_after: bool) -> None:
        super().__init__()
        self.doubles = by == "double"
        self.pads = pads_after and not self.doubles
        self.conv = nn.Conv2d(channels, channels, 3, stride=1 if self.doubles else 2, padding=0 if self.pads else 1)
        self.redistribute = Redistribute(dim=1)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = double(x_BCHW) if self.doubles else x_BCHW
        return self.redistribute(self.conv(F.pad(x, (0, 1, 0, 1)) if self.pads else x))


class TimeEmbedding(nn.Module):
    """Time steps [B] to [B, 4 base]: waves of them, and two linear layers with a SiLU behind each, where other code has
    the second one in every block. Waves number the steps 1 .. T from 0, as all published code does.
    scale: of these numbers.
    """

    def __init__(self, base: int, *, sines_first: bool, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.fc1 = WaveLinear(base, 4 * base, sines_first=sines_first)
        self.fc2 = nn.Linear(4 * base, 4 * base)

    def forward(self, steps_B: Tensor) -> Tensor:
        return F.silu(self.fc2(F.silu(self.fc1((steps_B - 1) * self.scale))))


SERIAL = UNet
