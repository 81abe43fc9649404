"""Does a grid fit a model and a batch, and which grid to take when none is asked for. No torch in it."""

from dataclasses import dataclass
from math import gcd, prod

from engine.errors import UsageError
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.gpt.placements import gpt_placements

STATE_BYTES_PER_PARAMETER = 16
"""fp32 master weight, gradient and two Adam moments."""


def parameters_per_rank(config: GPTConfig, grid: Grid) -> int:
    """Elements that each rank stores."""
    return sum(placement.local_numel(grid) for placement in gpt_placements(config).values())


def state_bytes(config: GPTConfig, grid: Grid) -> int:
    """Bytes of weights, gradients and optimizer that each rank of the grid holds; activations come on top."""
    return STATE_BYTES_PER_PARAMETER * parameters_per_rank(config, grid)


def check_memory(config: GPTConfig, grid: Grid, device_memory: float) -> None:
    """Raises UsageError if the state alone is larger than a device's memory (bytes)."""
    needed = state_bytes(config, grid)
    if needed > device_memory:
        raise UsageError(
            f"On grid {grid} the state of {config.name} needs {needed / 1e9:.3g} GB on each rank, but a device has "
            f"{device_memory / 1e9:.3g} GB: use more ranks on x, y or z."
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """sequences: of one global batch (one optimizer step). micro: of one rank's micro-batch, None for all it has."""

    sequences: int
    micro: int | None = None

    def per_rank(self, grid: Grid) -> int:
        """Sequences of one rank in a step."""
        return self.sequences // grid.batch_split


def _divisors(number: int) -> str:
    found = [str(d) for d in range(1, min(number, 4096) + 1) if number % d == 0]
    return ", ".join(found if len(found) <= 12 else [*found[:11], "..."])


def check_grid(config: GPTConfig, grid: Grid, batch: Batch) -> None:
    """Raises UsageError, naming the numbers and what would fit, unless the grid divides all that it has to."""
    x, y, z = grid.x, grid.y, grid.z
    fitting_x = _divisors(gcd(config.vocabulary, config.heads))
    if config.heads % x:
        raise UsageError(
            f"Grid {grid} splits the attention heads over x={x}, but {config.heads} heads are not a multiple of {x}: "
            f"x may be one of {fitting_x}."
        )
    if config.vocabulary % x:
        raise UsageError(
            f"Grid {grid} splits the vocabulary over x={x}, but {config.vocabulary} is not a multiple of {x}: use a "
            f"vocabulary of {-(-config.vocabulary // x) * x}, or x one of {fitting_x}."
        )
    if config.hidden % y:
        raise UsageError(
            f"Grid {grid} splits the hidden size over y={y}, but {config.hidden} is not a multiple of {y}: y may be "
            f"one of {_divisors(config.hidden)}."
        )
    for placement in gpt_placements(config).values():
        block = prod(placement.block_shape(grid))
        if placement.sharded and block % z:
            raise UsageError(
                f"Grid {grid} shards {placement.name} over z={z}, but a block of {block} elements is not a multiple of "
                f"{z}: choose z among the divisors of {gcd(config.hidden // y, block)}."
            )
    check_batch(grid, batch)


def check_batch(grid: Grid, batch: Batch) -> None:
    """Raises UsageError unless z and data split the batch evenly, and micro-batches a rank's share."""
    if batch.sequences < 1 or batch.sequences % grid.batch_split:
        fitting = max(1, -(-batch.sequences // grid.batch_split)) * grid.batch_split
        raise UsageError(
            f"Grid {grid} splits the batch over z and data into {grid.batch_split} parts, but a batch of "
            f"{batch.sequences} sequences is not a multiple of that: use --batch-size {fitting}."
        )
    share = batch.per_rank(grid)
    if batch.micro is not None and (batch.micro < 1 or share % batch.micro):
        raise UsageError(
            f"A rank of grid {grid} has {share} of the {batch.sequences} sequences, which micro-batches of "
            f"{batch.micro} don't divide: use --micro-batch one of {_divisors(share)}."
        )


def choose_grid(
    config: GPTConfig,
    ranks: int,
    batch: Batch,
    *,
    devices_per_node: int = 1,
    device_memory: float | None = None,
) -> Grid:
    """A valid grid for that many ranks. Raises UsageError if there is none.

    The rule is the baseline of axonn-sc24 VII-A: tensor parallelism (x) within a node, as far as the model's state
    (16 bytes a parameter, in half of device_memory bytes) needs it; then shards over z until the state fits; the rest
    is data. Without device_memory one device is taken to hold the state. A batch too small for that many parts moves
    ranks from data to z, then x, then y.
    """
    if ranks < 1:
        raise UsageError(f"A job has at least one rank, but {ranks} were asked for.")
    needed = state_bytes(config, Grid()) / (device_memory / 2) if device_memory else 1.0

    def cost(grid: Grid) -> tuple[bool, bool, int, int, int, int]:
        tensor = grid.x * grid.y * grid.z
        return (
            tensor < needed,
            grid.x * grid.y > devices_per_node,
            grid.y,
            tensor if tensor >= needed else -tensor,
            -grid.x if needed > 1 else grid.x,
            grid.z,
        )

    refusals: list[str] = []
    for grid in sorted(_factorisations(ranks), key=cost):
        try:
            check_grid(config, grid, batch)
        except UsageError as error:
            refusals.append(str(error))
            continue
        return grid
    raise UsageError(
        f"No grid of {ranks} ranks fits {config.name} with {batch.sequences} sequences; the closest failed so: "
        f"{refusals[0]}"
    )


def _factorisations(ranks: int) -> list[Grid]:
    def divisors(number: int) -> list[int]:
        return [d for d in range(1, number + 1) if number % d == 0]

    return [
        Grid(x, y, z, ranks // (x * y * z))
        for x in divisors(ranks)
        for y in divisors(ranks // x)
        for z in divisors(ranks // (x * y))
    ]
