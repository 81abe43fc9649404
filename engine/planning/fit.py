"""Does a grid fit a model and a batch? No torch in it."""

from math import gcd, prod

from engine.batch import Batch
from engine.errors import UsageError, divisors
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


def check_grid(config: GPTConfig, grid: Grid, batch: Batch) -> None:
    """Raises UsageError, naming the numbers and what would fit, unless the grid divides all that it has to."""
    x, y, z = grid.x, grid.y, grid.z
    fitting_x = divisors(gcd(config.vocabulary, config.heads))
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
            f"one of {divisors(config.hidden)}."
        )
    for placement in gpt_placements(config).values():
        block = prod(placement.block_shape(grid))
        if placement.sharded and block % z:
            raise UsageError(
                f"Grid {grid} shards {placement.name} over z={z}, but a block of {block} elements is not a multiple of "
                f"{z}: choose z among the divisors of {gcd(config.hidden // y, block)}."
            )
    batch.check(grid)
