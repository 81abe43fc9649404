"""Table of the layers of the grid that take the places of serial ones. Who adds a layer adds it to the table."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from engine.layers.conv2d import Conv2d, Joining, JoiningOnGrid, Skip, SkipOnGrid
from engine.layers.dropout import Dropout, PixelDropout
from engine.layers.elementwise import GELU, AddNorm, FusedAddNorm, FusedGELU, FusedRotate, FusedSwiGLU, Rotate, SwiGLU
from engine.layers.embedding import (
    Patches,
    PatchesOnGrid,
    PositionEmbedding,
    TokenEmbedding,
    WaveLinear,
    WaveLinearOnGrid,
)
from engine.layers.group_norm import GroupNorm
from engine.layers.linear import Linear
from engine.layers.local import Local
from engine.layers.loss import CrossEntropy, SerialCrossEntropy
from engine.layers.modes import split, summa
from engine.layers.norm import HeadNorm, LayerNorm, RMSNorm
from engine.layers.redistribute import Redistribute, RedistributeOverGrid
from engine.tensor_mode import SPLIT, SPLIT_HEADS, SQUARE, SQUARE_AS_PUBLISHED

OnGrid = TypeVar("OnGrid", bound=Linear)


def _embedding(serial: nn.Embedding, local: Local) -> nn.Module:
    if "weight" in local.sharded:
        return TokenEmbedding(local.comm, local.schedule, local.sharded["weight"], serial.padding_idx)
    return PositionEmbedding(local.parameters["weight"], local.schedule.compute_dtype)


def _layer_norm(serial: nn.LayerNorm, local: Local) -> nn.Module:
    weight, bias = local.parameters["weight"], local.parameters.get("bias")
    return LayerNorm(local.comm, local.mode.stream.features, local.schedule, weight, bias, serial.eps)


def _rms_norm(serial: nn.RMSNorm, local: Local) -> nn.Module:
    assert serial.eps is not None
    (axis,) = local.placements["weight"].split
    if axis is None:
        return HeadNorm(local.comm, local.parameters["weight"], serial.eps)
    return RMSNorm(local.comm, axis, local.schedule, local.parameters["weight"], serial.eps)


def _make_linear(kind: type[OnGrid], local: Local) -> OnGrid:
    return kind(local.comm, local.schedule, local.sharded["weight"], local.parameters.get("bias"), local.kernels)


def _conv2d(serial: nn.Conv2d, local: Local) -> nn.Module:
    plain = (serial.groups, serial.dilation, serial.padding_mode) == (1, (1, 1), "zeros")
    if not plain or isinstance(serial.padding, str):
        raise ValueError(f"Give {local.name} one group, no dilation and a number of zeros as padding.")
    stride, padding = (serial.stride[0], serial.stride[1]), (serial.padding[0], serial.padding[1])
    bias, kind = local.parameters.get("bias"), CONVOLUTIONS.get(type(serial), Conv2d)
    return kind(local.comm, local.schedule, local.sharded["weight"], bias, stride, padding)


CONVOLUTIONS: dict[type[nn.Conv2d], type[Conv2d]] = {Skip: SkipOnGrid, Joining: JoiningOnGrid}


def _group_norm(serial: nn.GroupNorm, local: Local) -> nn.Module:
    weight, bias = local.parameters["weight"], local.parameters["bias"]
    return GroupNorm(
        local.comm, local.schedule, local.placements["weight"], weight, bias, serial.num_groups, serial.eps
    )


def _wave_linear(serial: WaveLinear, local: Local) -> nn.Module:
    layer = _make_linear(WaveLinearOnGrid, local)
    layer.waves = serial.waves
    return layer


def _patches(serial: Patches, local: Local) -> nn.Module:
    layer = _make_linear(PatchesOnGrid, local)
    layer.side = serial.side
    return layer


def _dropout(_: nn.Dropout, local: Local) -> nn.Module:
    raise ValueError(f"{local.name} draws masks that no grid can repeat: use engine.layers.dropout.Dropout.")


Makers = dict[type[nn.Module], Callable[[Any, Local], nn.Module]]
LAYERS: Makers = {
    Patches: _patches,
    nn.Linear: lambda _, local: _make_linear(Linear, local),
    WaveLinear: _wave_linear,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.Dropout: _dropout,
    Dropout: lambda serial, local: Dropout(serial.p, serial.site, part=local.comm.coords[local.mode.stream.features]),
    PixelDropout: lambda serial, local: PixelDropout(
        serial.p, serial.site, part=local.comm.coords[local.mode.inner.features]
    ),
    SerialCrossEntropy: lambda serial, local: CrossEntropy(
        local.comm, local.mode.inner.features, serial.columns, ignores=serial.ignores
    ),
    Rotate: lambda _, __: FusedRotate(),
    SwiGLU: lambda _, __: FusedSwiGLU(),
    GELU: lambda serial, _: FusedGELU(serial.approximate),
    AddNorm: lambda _, __: FusedAddNorm(),
    Redistribute: lambda serial, local: RedistributeOverGrid(local.comm, local.mode, serial.dim),
}
"""Makers of the grid's layer of a serial one, by type. Other types work on part of their features."""
MODES: dict[str, Makers] = {
    **{mode.name: split.LAYERS for mode in (SPLIT, SPLIT_HEADS)},
    **{mode.name: summa.LAYERS for mode in (SQUARE, SQUARE_AS_PUBLISHED)},
}
"""Makers of those layers that a tensor mode has of its own, by its name."""


def layer_of_grid(serial: nn.Module, local: Local) -> nn.Module | None:
    """Make the layer that takes a serial one's place; None if it stays."""
    makers = LAYERS | MODES.get(local.mode.name, {})
    make = next((makers[kind] for kind in type(serial).__mro__ if kind in makers), None)
    return None if make is None else make(serial, local)
