"""Does a grid fit a model and a batch? No torch in it."""

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture

STATE_BYTES_PER_PARAMETER = 16
"""fp32 master weight, gradient and two Adam moments."""


def parameters_per_rank(model: Architecture, grid: Grid) -> int:
    """Elements that each rank stores."""
    return sum(placement.local_numel(grid) for placement in model.placements().values())


def state_bytes(model: Architecture, grid: Grid) -> int:
    """Bytes of weights, gradients and optimizer that each rank of the grid holds; activations come on top."""
    return STATE_BYTES_PER_PARAMETER * parameters_per_rank(model, grid)


def check_memory(model: Architecture, grid: Grid, device_memory: float) -> None:
    """Raises UsageError if the state alone is larger than a device's memory (bytes)."""
    needed = state_bytes(model, grid)
    if needed > device_memory:
        raise UsageError(
            f"On grid {grid} the state of {model.name} needs {needed / 1e9:.3g} GB on each rank, but a device has "
            f"{device_memory / 1e9:.3g} GB: use more ranks on x, y or z."
        )


def check_grid(model: Architecture, grid: Grid, batch: Batch) -> None:
    """Raises UsageError, naming the numbers and what would fit, unless the grid divides all that it has to."""
    model.check(grid)
    batch.check(grid)
