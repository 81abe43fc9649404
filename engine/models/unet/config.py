"""U-Net as an Architecture (Nichol and Dhariwal 2021; Dhariwal and Nichol 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from typing import ClassVar, Literal

from engine.data import CHANNELS
from engine.data.dataset import Images
from engine.errors import UsageError, listed_divisors
from engine.models.architecture import Architecture, check_dropout, check_positive
from engine.models.denoising import Denoising, NoiseSchedule
from engine.models.image_operations import Added, Conv2d, GroupNorm, Resample
from engine.models.network import Carried, Network, Section
from engine.models.operations import ONTO_STREAM, ZERO, Attention, Linear, Operation, Redistribute
from engine.placement import Gaussian, Initial, Uniform
from engine.tensor_mode import Side

GROUPS = 32
"""Groups of channels of each norm."""
NUMBERED = 1000
COMPARED_STD = 0.02
"""Of the weights that would begin as zeros, where trainings are compared over few steps."""
Resampling = Literal["half", "double"]


@dataclass(frozen=True, slots=True)
class UNetStep:
    """Step of a U-Net: a residual block with or without attention, or what halves or doubles images."""

    channels_in: int
    """channels of the stream that it takes"""
    channels: int
    """channels of the stream that it gives"""
    side: int
    """pixels along a side of the images that it takes"""
    attends: bool = False
    """whether its pixels attend to one another at the end"""
    takes: int = 0
    """channels that an earlier step has left, behind those of the stream"""
    leaves: bool = False
    """whether it leaves its input for a later step, too"""
    resampling: Resampling | None = None
    convolves: bool = False
    """whether it resamples by a convolution alone, not in a residual block"""

    @property
    def joined(self) -> int:
        """Channels that it works on."""
        return self.channels_in + self.takes

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts of these, where there are two."""
        return (self.channels_in, self.takes) if self.takes else ()

    @property
    def side_out(self) -> int:
        """Pixels along a side of the images that it gives."""
        return {None: self.side, "half": self.side // 2, "double": self.side * 2}[self.resampling]


@dataclass(frozen=True, slots=True)
class UNetConfig(Architecture):
    """U-Net with a level for each multiplier, whose images have half the side of those of the level before.

    The defaults are what guided-diffusion makes of images of 32 x 32 pixels. improved-diffusion's own U-Net for these
    has four heads, resamples by convolutions, gives six outputs, rescales time steps, and drops 0.3 of CIFAR-10's.
    """

    family: ClassVar[str] = "unet"
    name: str
    base: int
    """channels that multipliers are of"""
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    """of each level's channels, from the largest images to the smallest"""
    depth: int = 3
    """residual blocks of a level on the way down; there is one more on the way up"""
    attention: tuple[int, ...] = (16, 8)
    """sides, in pixels, at which pixels attend to one another, if a level has them; those in the middle always do"""
    head_channels: int = 64
    """channels of a head of attention; of no account if heads are given"""
    level_heads: int | None = None
    """heads of attention, the same number at each level"""
    resampling: Literal["block", "convolution"] = "block"
    """whether a residual block or a convolution halves and doubles images"""
    padding: Literal["around", "after"] = "around"
    """where a convolution that halves images finds zeros"""
    sines_first: bool = False
    """whether waves of time steps are those of Ho et al.'s code"""
    scales: bool = True
    """whether a time step scales what it shifts"""
    norm_eps: float = 1e-5
    """added to variances"""
    image: int = 32
    """pixels along a side of what it takes"""
    channels_out: int = CHANNELS
    """channels of what it gives: the noise's, and those of its variance where that is learned, too"""
    schedule: NoiseSchedule = "linear"
    """how the variance of the noise grows"""
    diffusion_steps: int = 1000
    """steps in which an image becomes noise"""
    rescales_steps: bool = False
    """whether waves number the steps from 0 to 1000, however many there are, as improved-diffusion's do"""
    dropout: float = 0.0
    """probability of dropping a channel of a pixel before the last convolution of a residual block, in training"""
    last_std: float = 0.0
    """standard deviation of the initial weights that end a block, and of the last convolution"""
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for name in ("multipliers", "attention"):  # as a file or a list of options has them
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_positive(self)
        check_dropout(self.dropout)
        if min(self.multipliers, default=0) < 1:
            raise UsageError(
                "A U-Net's multipliers are a number from 1 up for each of its levels, but "
                f"{', '.join(map(str, self.multipliers)) or 'none'} were given."
            )
        if self.norm_eps <= 0:
            raise UsageError(f"A U-Net's norm_eps is a positive number, but {self.norm_eps:g} was given.")
        if self.channels_out not in (CHANNELS, 2 * CHANNELS):
            raise UsageError(
                f"A U-Net gives {CHANNELS} channels, or {2 * CHANNELS} with those of the variance, but channels_out of "
                f"{self.channels_out} was given."
            )
        _ = self.task  # whose noise is checked
        smallest = 2 ** (len(self.multipliers) - 1)
        if self.image % smallest:
            raise UsageError(
                f"A U-Net of {len(self.multipliers)} levels halves an image's side to 1/{smallest}, but {self.image} "
                f"is not a multiple of {smallest}: {smallest * (self.image // smallest + 1)} would be."
            )
        if self.base % GROUPS:
            raise UsageError(
                f"A U-Net's norms have {GROUPS} groups, so its base must be a multiple of {GROUPS}, but {self.base} is "
                f"not: {GROUPS * (self.base // GROUPS + 1)} would be."
            )
        for channels in {step.channels for step in self.steps if step.attends}:
            if channels % (self.level_heads or self.head_channels):
                parts = f"{self.level_heads} heads" if self.level_heads else f"heads of {self.head_channels} channels"
                raise UsageError(
                    f"The U-Net attends on {channels} channels, which {parts} don't divide: take one of "
                    f"{listed_divisors(channels)}."
                )

    @property
    def steps_scale(self) -> float:
        """Factor of the number of a diffusion step before it becomes waves."""
        return NUMBERED / self.diffusion_steps if self.rescales_steps else 1

    @property
    def sides(self) -> tuple[int, ...]:
        """Pixels along a side of each level's images."""
        return tuple(self.image // 2**level for level in range(len(self.multipliers)))

    @property
    def steps(self) -> tuple[UNetStep, ...]:
        """Steps on the way down, in the middle, and on the way up."""
        down, left = [*self._down()], [self.base]
        left += [step.channels for step in down]
        last, side = down[-1].channels, self.sides[-1]
        middle = [UNetStep(last, last, side, attends=True, leaves=True), UNetStep(last, last, side)]
        return (*down, *middle, *self._up(last, left))

    def _down(self) -> Iterator[UNetStep]:
        stream = self.base
        for multiplier, side in zip(self.multipliers, self.sides, strict=True):
            channels = multiplier * self.base
            if side != self.image:
                yield self._resampling(stream, 2 * side, "half", leaves=True)
            for _ in range(self.depth):
                yield UNetStep(stream, channels, side, attends=side in self.attention, leaves=True)
                stream = channels

    def _up(self, stream: int, left: list[int]) -> Iterator[UNetStep]:
        """Take what was left, the last first."""
        for multiplier, side in zip(reversed(self.multipliers), reversed(self.sides), strict=True):
            channels = multiplier * self.base
            for _ in range(self.depth + 1):
                yield UNetStep(stream, channels, side, attends=side in self.attention, takes=left.pop())
                stream = channels
            if side != self.image:
                yield self._resampling(stream, side, "double")

    def _resampling(self, channels: int, side: int, by: Resampling, *, leaves: bool = False) -> UNetStep:
        return UNetStep(
            channels, channels, side, resampling=by, convolves=self.resampling == "convolution", leaves=leaves
        )

    def head_size(self, channels: int) -> int:
        """Return the channels of a head where the stream has so many."""
        return channels // self.level_heads if self.level_heads else self.head_channels

    @property
    def layers(self) -> int:  # type: ignore[override]
        """Number of steps, which activation checkpointing runs again one by one."""
        return len(self.steps)

    @property
    def hidden(self) -> int:  # type: ignore[override]
        """Channels of the stream at full size."""
        return self.base

    @property
    def heads(self) -> int:  # type: ignore[override]
        """Heads of attention in the middle."""
        channels = self.multipliers[-1] * self.base
        return channels // self.head_size(channels)

    @property
    def sequence(self) -> int:  # type: ignore[override]
        """Pixels of an image."""
        return self.image**2

    @property
    def outputs(self) -> int:
        """Channels that it gives of a pixel."""
        return self.channels_out

    def network(self) -> Network:
        """List the operations. Initial values are PyTorch's own, and zeros where a block or the network ends."""
        return _table(self)

    def without_zeros(self) -> "UNetConfig":
        return replace(self, last_std=COMPARED_STD)

    @property
    def task(self) -> Denoising:
        return Denoising(Images(self.image), self.schedule, self.diffusion_steps)


@cache
def _table(shape: UNetConfig) -> Network:
    """List the operations. A level's images are the stream.

    Raises ValueError if both ends of a skip aren't alike, or it has one alone.
    """
    base = shape.base
    time = (
        _linear("time.fc1", 4 * base, base, reads_data=True, tokens=1),
        _linear("time.fc2", 4 * base, 4 * base, sides=ONTO_STREAM, tokens=1),
    )
    first = _conv("conv_in", base, CHANNELS, shape.image, sides=(Side.STREAM, None), reads_data=True)
    last = _conv(
        "conv_out",
        shape.channels_out,
        base * shape.multipliers[0],
        shape.image,
        sides=(None, Side.STREAM),
        init=_ending(shape.last_std),
        bias_init=ZERO,
    )
    network = Network(
        (
            Section((*time, first)),
            *(_section(shape, step, number) for number, step in enumerate(shape.steps)),
            Section((GroupNorm("norm", base * shape.multipliers[0], GROUPS), last)),
        ),
        (_images(base, shape.image), Carried((4 * base,), 0, "channels")),
    )
    _ = network.boundaries  # of every level, before anything runs
    return network


def _section(shape: UNetConfig, step: UNetStep, number: int) -> Section:
    n, pixels = step.channels, step.side**2
    operations: list[Operation] = []
    if step.convolves:
        before = (step.side + (shape.padding == "after")) ** 2 if step.resampling == "half" else None
        operations += [_conv("resampling.conv", n, n, step.side_out, pixels_in=before), Redistribute(n)]
    else:
        operations += _residual(shape, step)
    if step.attends:
        size, end = shape.head_size(n), _ending(shape.last_std)
        operations += [
            GroupNorm("attention.norm", n, GROUPS, silu=False, tokens=pixels),
            _linear("attention.attention.qkv", 3 * n, n, parts=(n, n, n), units=n // size, tokens=pixels),
            Attention(n // size, n // size, size, causal=False, tokens=pixels),
            _linear(
                "attention.attention.out",
                n,
                n,
                sides=ONTO_STREAM,
                units=n // size,
                init=end,
                bias_init=ZERO,
                tokens=pixels,
            ),
            Added(n, tokens=pixels),
        ]
    taken = _images(step.takes, step.side) if step.takes else None
    return Section(
        tuple(operations),
        "blocks",
        recomputed=True,
        tokens=step.side_out**2,
        first=number,
        output=_images(n, step.side_out),
        takes=taken,
        leaves=step.leaves,
    )


def _residual(shape: UNetConfig, step: UNetStep) -> list[Operation]:
    k, n, side, before = step.joined, step.channels, step.side_out, step.side**2
    end, of_step = _ending(shape.last_std), (n, n) if shape.scales else (n,)
    skip: list[Operation] = []
    if k != n:
        skip = [_conv("residual.skip", n, k, side, kernel=1, parts_in=step.parts, joins=True, shares_input=True)]
    resample = [Resample(k, halves=step.resampling == "half", tokens=before)] if step.resampling else []
    return [
        GroupNorm("residual.norm1", k, GROUPS, parts_in=step.parts, tokens=before),
        *resample,
        _conv("residual.conv1", n, k, side, parts_in=step.parts),
        _linear("residual.embedding", sum(of_step), 4 * shape.base, parts=of_step, tokens=1),
        GroupNorm("residual.norm2", n, GROUPS, Side.INNER, tokens=side**2),
        *skip,
        _conv("residual.conv2", n, n, side, sides=ONTO_STREAM, init=end, bias_init=ZERO),
        Added(k, multiplied=bool(skip), tokens=before),
    ]


def _images(channels: int, side: int) -> Carried:
    return Carried((channels, side, side), 0, "channels")


def _linear(name: str, n: int, k: int, *, init: Initial | None = None, **options: object) -> Linear:
    default = Uniform(1 / sqrt(k))
    given = {"bias": True, "init": init or default, "bias_init": default} | options
    return Linear(name, n, k, **given)  # type: ignore[arg-type]


def _conv(
    name: str, n: int, k: int, side: int, *, init: Initial | None = None, kernel: int = 3, **options: object
) -> Conv2d:
    default = Uniform(1 / sqrt(k * kernel**2))
    given = {"bias": True, "init": init or default, "bias_init": default, "tokens": side**2} | options
    return Conv2d(name, n, k, kernel=kernel, **given)  # type: ignore[arg-type]


def _ending(std: float) -> Initial:
    return Gaussian(std) if std else ZERO
