"""Initial values, drawn shard by shard: the same global weights for every grid, of which a rank draws what it keeps.

A value follows from the seed, the parameter's name and the element's place in the whole parameter, by a hash. Its 24
random bits are the same on every device. The normal number made of them may differ in its last bits, as PyTorch's
erfinv does; on processors without MKL that is 1e-6 off at three standard deviations, and 4e-5 beyond five.

Inductor compiles nothing of it for GPUs: in PyTorch's own passes a billion elements take a tenth of a second, and
Inductor takes longer.
"""

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from engine.batch import chunks
from engine.grid import Coords, Grid
from engine.layers.counter_random import mix_bits, words_of
from engine.models.architecture import Architecture
from engine.models.serial import SerialModel
from engine.placement import Constant, Gaussian, Initial, Placement

LARGEST = 5.42
"""Outermost of the 2^24 equally likely values, in standard deviations."""


def initial(placement: Placement, grid: Grid, coords: Coords, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw the elements of a parameter that a rank stores: float32 [local_numel]; on the meta device draw nothing."""
    local = torch.zeros(placement.local_numel(grid), dtype=torch.float32, device=device)
    if not local.is_meta:
        for rectangle in placement.rectangles(grid, coords):
            fill(rectangle.view(local), placement, rectangle.offsets, seed)
    return local


def initial_rows(placement: Placement, rows: range, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw these rows of a whole parameter, as `initial` draws them: float32 [len(rows), ...]."""
    drawn = torch.empty(len(rows), *placement.shape[1:], dtype=torch.float32, device=device)
    return fill(drawn, placement, (rows.start, *(0 for _ in placement.shape[1:])), seed)


def fill(part: Tensor, placement: Placement, offsets: tuple[int, ...], seed: int) -> Tensor:
    """Give a part of a parameter its values, some rows at a time. offsets: where in the parameter the part begins.

    Two words of a row go into the hash: with one, of 32 bits, two rows among the million of a large network would be
    the same now and then.
    """
    if isinstance(placement.init, Constant):
        return part.fill_(placement.init.value)
    row_key, second_key, column_key = _keys(seed, placement.name)
    columns = words_of(_columns(part, placement, offsets), column_key)
    numbers = torch.arange(offsets[0], offsets[0] + len(part), device=part.device).unsqueeze(1)
    first, second = words_of(numbers, row_key), words_of(numbers, second_key)
    slices = list(chunks(len(part), 4 * len(columns), part.device.type))
    most = max((len(part[rows]) for rows in slices), default=0)
    memory = torch.empty(2, most, len(columns), dtype=torch.int32, device=part.device)
    for rows in slices:
        values = part[rows]
        bits, spare = memory[:, : len(values)]
        torch.bitwise_xor(first[rows], columns, out=bits)
        mix_bits(mix_bits(bits, spare).bitwise_xor_(second[rows]), spare)
        draw_from_bits(bits.view(values.shape), placement.init, values)
    return part


def draw_from_bits(bits: Tensor, init: Initial, out: Tensor) -> Tensor:
    """Turn the upper 24 of 32 bits, in int32 that is overwritten, into numbers of a distribution. out: of any
    precision.
    """
    assert not isinstance(init, Constant)
    even = out.copy_(bits.bitwise_right_shift_(8)).add_(0.5).mul_(2**-23)
    if isinstance(init, Gaussian):
        return even.erfinv_().mul_(math.sqrt(2) * init.std)
    return even.mul_(init.bound)


def _columns(part: Tensor, placement: Placement, offsets: tuple[int, ...]) -> Tensor:
    """Return the places in the parameter's flattened row of the elements of a part's row."""
    places = torch.zeros(1, dtype=torch.int64, device=part.device)
    for offset, size, whole in zip(offsets[1:], part.shape[1:], placement.shape[1:], strict=True):
        along = torch.arange(offset, offset + size, device=part.device)
        places = (places.unsqueeze(1) * whole + along).flatten()
    return places


def _keys(seed: int, name: str) -> tuple[int, int, int]:
    first, second, third = struct.unpack("<3I", hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=12).digest())
    return first, second, third


def initialise_serial(
    architecture: Architecture, seed: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> SerialModel:
    """Make the serial model with the global weights that every grid starts from."""
    model = without_values(architecture)
    model.to(dtype)
    materialise(model, architecture, device)
    placements = architecture.placements()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = initial(placements[name], Grid(), Coords(), seed, device)
            parameter.copy_(values.view(parameter.shape))
    return model


def without_values(architecture: Architecture) -> SerialModel:
    """Make the serial model on the meta device: modules and shapes."""
    with torch.device("meta"), _Undrawn():
        return architecture.serial()


class _Undrawn(TorchFunctionMode):
    """Omission of PyTorch's own initial values, which on the meta device would load its compiler to draw nothing."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"]
        return func(*args, **given)


def materialise(model: SerialModel, architecture: Architecture, device: torch.device | str) -> None:
    """Give a model on the meta device memory without values. Tied parameters stay one, of which to_empty makes two."""
    model.to_empty(device=device)
    for second, first in architecture.ties.items():
        owner, _, attribute = second.rpartition(".")
        setattr(model.get_submodule(owner), attribute, model.get_parameter(first))
