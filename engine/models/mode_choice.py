"""Choice of the tensor mode in which a network lies on a grid. No torch."""

from collections.abc import Iterable
from math import gcd, isqrt, prod
from typing import Literal

from engine.errors import UsageError, listed_divisors
from engine.grid import SPLITTING_ROWS, TENSOR, Axis, Grid
from engine.models.network import Network
from engine.models.operations import Attention
from engine.tensor_mode import ALGORITHM_1, SPLIT, SPLIT_HEADS, SQUARE, SQUARE_AS_PUBLISHED, Side, TensorMode

ModeName = Literal["auto", "4d", "split", "split-heads", "1d", "2d", "2d-published", "2.5d", "3d"]
SQUARES = {"2d": SQUARE, "2.5d": SQUARE, "2d-published": SQUARE_AS_PUBLISHED}
MODES: tuple[ModeName, ...] = ("4d", "split", "2d")
"""Modes of which a plan chooses; of those that are estimated to take as long the first."""
GATHERING: tuple[ModeName, ...] = ("auto", "split", "split-heads", "3d")
"""Names of modes that split activations, if only on some grids."""


def choose_mode(name: ModeName, network: Network, grid: Grid, samples: float) -> TensorMode:
    """Return the mode that a name asks for. samples: of a rank's micro-batch.

    split shares out the rows between two products where each rank gets whole samples, else heads. auto takes it where
    Algorithm 1 would repeat attention, if the network can lie so.
    """
    if name in (ALGORITHM_1.name, "1d") or (name == "auto" and ALGORITHM_1.repeats(Side.INNER, grid) == 1):
        return ALGORITHM_1
    if name in SQUARES:
        return SQUARES[name]
    by_heads = name == SPLIT_HEADS.name or samples % _ranks(grid, SPLIT.inner.rows)
    mode = SPLIT_HEADS if by_heads else SPLIT
    return ALGORITHM_1 if name == "auto" and _fault(mode, network, grid, samples) else mode


def check_mode(name: ModeName, network: Network, grid: Grid, samples: int) -> None:
    """Raise UsageError, naming what would fit, if the grid is none of the mode's, or the network can't lie on it so."""
    fault = _wrong_grid(name, grid) or _fault(choose_mode(name, network, grid, samples), network, grid, samples)
    if fault:
        raise UsageError(f"{fault}, or --tensor-mode 4d.")


def _wrong_grid(name: ModeName, grid: Grid) -> str | None:
    """Say what shape a grid of the mode has; None if this one has it."""
    side, depth, asked = grid[TENSOR], grid.batch_split, f"--tensor-mode {name} takes"
    if name == "1d" and side < grid.plane:
        return f"{asked} no other plane than a line along {TENSOR}, but the grid is {grid}: use {grid.plane}x1 of both"
    if name == "3d" and (side**2, side) != (grid.plane, grid.shards):
        near = round((grid.plane * grid.shards) ** (1 / 3))
        return f"{asked} a cube of its first three axes, but the grid is {grid}: use {near}x{near}x{near} of these"
    if name in SQUARES and side**2 != grid.plane:
        near = isqrt(grid.plane)
        return f"{asked} a square of its first two axes, but the grid is {grid}: use {near}x{near} of these"
    if name == "2.5d" and depth > side:
        return (
            f"{asked} at most as many squares as one has columns, but the grid {grid} has {depth} squares of {side} "
            f"columns: use at most {side} ranks on {' and '.join(SPLITTING_ROWS)} together"
        )
    return None


def _fault(mode: TensorMode, network: Network, grid: Grid, samples: float) -> str | None:
    """Say why the network can't lie so; None if it can."""
    if not mode.splits_rows:
        return None
    if not network.passes_tokens:
        return (
            f"--tensor-mode {mode.name} shares out tokens, but blocks of this network pass images on: use a network of "
            "tokens"
        )
    inside, parts = _ranks(grid, mode.inner.rows), _ranks(grid, mode.inner.axes)
    heads = gcd(*(op.kv_heads for section in network.sections for op in section.of_kind(Attention)))
    if mode.by_heads and heads % parts:
        return (
            f"On grid {grid} --tensor-mode {mode.name} shares out the {samples:g} samples of a micro-batch among "
            f"{inside} ranks, or {heads} heads among {parts}, which divide neither: use a --micro-batch that "
            f"{inside} divides, a grid of which x * y is one of {listed_divisors(heads)}"
        )
    if mode.square and samples % inside:
        return (
            f"On grid {grid} --tensor-mode {mode.name} shares out the {samples:g} samples of a micro-batch among "
            f"{inside} ranks, which don't divide them: use a --micro-batch that does"
        )
    for tokens in network.tokens_of_blocks:
        for ranks in (inside, _ranks(grid, mode.stream.rows)):
            if samples * tokens % ranks:
                return (
                    f"On grid {grid} --tensor-mode {mode.name} shares out the {samples * tokens:g} tokens of a "
                    f"micro-batch among {ranks} ranks, which don't divide them: use a --micro-batch that does"
                )
    return None


def _ranks(grid: Grid, axes: Iterable[Axis]) -> int:
    return prod(grid[axis] for axis in axes)
