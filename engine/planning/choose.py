"""Choice of the grid of a run for which none is asked, as published series have it. No torch."""

from engine.errors import UsageError
from engine.footprint.fit import check_grid, fits_nodes
from engine.footprint.memory import Footprint, usable
from engine.grid import INNER, STREAM, Grid
from engine.planning.grids import SearchSpace, factorisations
from engine.planning.rank import Workload, cheapest
from engine.simulator.bandwidth import Bandwidths, agnostic
from engine.training_record import Training


def choose_grid(
    training: Training,
    ranks: int,
    *,
    device: str = "cuda",
    devices_per_node: int = 1,
    device_memory: float | None = None,
    bandwidths: Bandwidths | None = None,
) -> Grid:
    """Choose a valid grid of that many ranks. Raises UsageError if there is none.

    Where the machine's bandwidths are known, it is the grid that fits and whose communication, as the engine runs it,
    costs least (rank.py). The processors of one node exchange through their common memory, which is the same for all
    axes: where its bandwidth is unknown, it is the grid that moves the fewest bytes (par4d V-A).

    Otherwise, or where nothing fits, the rule is the baseline of axonn-sc24 VII-A: tensor parallelism (x) within a node
    until a step fits the usable part of device_memory (memory.py), then shards over z until it fits; the rest is data.
    Without device_memory one device is taken to hold everything. A batch too small for that many parts moves ranks from
    data to z, then to x, then to y. No plane of x and y lies across the border of two nodes.
    """
    if ranks < 1:
        raise UsageError(f"A job has at least one rank, but {ranks} were asked for.")
    if bandwidths is None and device == "cpu" and ranks <= devices_per_node:
        bandwidths = agnostic()
    if bandwidths is not None:
        batch = training.batch
        space = SearchSpace(training.model, batch.sequences, exact=True, micro=batch.micro)
        grids = [g for g in space.grids(ranks, batch.sequences) if fits_nodes(g, bandwidths.devices_per_node)]
        if (found := cheapest(Workload(training, device_memory, device), grids, bandwidths)) is not None:
            return found
    refusals: dict[Grid, UsageError] = {}
    valid = []
    for grid in factorisations(ranks):
        try:
            _check_nodes(grid, devices_per_node)
            check_grid(training.model, grid, training.batch)
        except UsageError as error:
            refusals[grid] = error
        else:
            valid.append(grid)
    footprint = Footprint(training, device)
    splits = footprint.on(Grid.replicated(ranks)).total > usable(device_memory)

    def cost(grid: Grid) -> tuple[bool, int, int, int, int, int]:
        holding, fits = grid.size // grid.model_replicas, footprint.on(grid).total <= usable(device_memory)
        return (
            not fits,
            -(-grid.plane // devices_per_node),
            grid[STREAM],
            holding if fits else -holding,
            -grid[INNER] if splits else grid[INNER],
            grid.shards,
        )

    if valid:  # few of all, and what a step needs takes longer to count than whether a grid is valid
        return min(valid, key=cost)
    raise UsageError(
        f"No grid of {ranks} ranks fits {training.model.name} with {training.batch.sequences} sequences; the closest "
        f"failed so: {refusals[min(refusals, key=cost)]}"
    )


def _check_nodes(grid: Grid, devices_per_node: int) -> None:
    if not fits_nodes(grid, devices_per_node):
        raise UsageError(
            f"A plane of x and y of grid {grid} is {grid.plane} ranks, which neither divide a node of "
            f"{devices_per_node} devices nor fill whole nodes."
        )
