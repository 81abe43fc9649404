"""The U-Net's table of operations. The stream is split over y, as a transformer's is. No torch in it."""

from functools import cache
from math import sqrt
from typing import TYPE_CHECKING

from engine.data.colours import CHANNELS
from engine.grid import INNER, STREAM
from engine.models.image_operations import Added, Conv2d, GroupNorm, Resample
from engine.models.network import Carried, Network, Section
from engine.models.operations import ZERO, Attention, Linear, Operation, Redistribute
from engine.models.unet.steps import GROUPS, Step
from engine.placement import TRANSPOSED, Gaussian, Initial, Uniform

if TYPE_CHECKING:
    from engine.models.unet.config import UNetConfig


@cache
def table(shape: "UNetConfig") -> Network:
    """List the operations of a shape. Raises ValueError if both ends of a skip aren't alike, or it has one alone."""
    base, steps = shape.base, shape.steps
    time = (
        _linear("time.fc1", 4 * base, base, reads_data=True, tokens=1),
        _linear("time.fc2", 4 * base, 4 * base, split=TRANSPOSED, tokens=1),
    )
    first = _conv("conv_in", base, CHANNELS, shape.image, split=(STREAM, None), reads_data=True)
    last = _conv(
        "conv_out",
        shape.channels_out,
        base * shape.multipliers[0],
        shape.image,
        split=(None, STREAM),
        init=_ending(shape.last_std),
        bias_init=ZERO,
    )
    network = Network(
        (
            Section((*time, first)),
            *(_section(shape, step, number) for number, step in enumerate(steps)),
            Section((GroupNorm("norm", base * shape.multipliers[0], GROUPS), last)),
        ),
        (_images(base, shape.image), Carried((4 * base,), 0, "channels")),
    )
    _ = network.boundaries  # of every level, before anything runs
    return network


def _section(shape: "UNetConfig", step: Step, number: int) -> Section:
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
            _linear("attention.attention.qkv", 3 * n, n, parts=(n, n, n), tokens=pixels),
            Attention(n // size, n // size, size, causal=False, tokens=pixels),
            _linear("attention.attention.out", n, n, split=TRANSPOSED, init=end, bias_init=ZERO, tokens=pixels),
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


def _residual(shape: "UNetConfig", step: Step) -> list[Operation]:
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
        GroupNorm("residual.norm2", n, GROUPS, INNER, tokens=side**2),
        *skip,
        _conv("residual.conv2", n, n, side, split=TRANSPOSED, init=end, bias_init=ZERO),
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
