"""The grid to take when none is asked for. No torch in it."""

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.planning.fit import check_grid, state_bytes


def choose_grid(
    model: Architecture,
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
    needed = state_bytes(model, Grid()) / (device_memory / 2) if device_memory else 1.0

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
            check_grid(model, grid, batch)
        except UsageError as error:
            refusals.append(str(error))
            continue
        return grid
    raise UsageError(
        f"No grid of {ranks} ranks fits {model.name} with {batch.sequences} sequences; the closest failed so: "
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
