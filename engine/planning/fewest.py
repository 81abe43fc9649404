"""Say how much memory a workload lacks that fits on no grid, and find the fewest devices for it. No torch."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, gcd

from engine.errors import UsageError
from engine.footprint.memory import USABLE, Needs
from engine.grid import Grid
from engine.planning.grids import SearchSpace
from engine.planning.rank import Workload


def refusal(workload: Workload, space: SearchSpace, grids: Sequence[Grid], devices_per_node: int) -> UsageError:
    """Make the error of a workload that fits on none of these grids, which all have as many devices."""
    smallest = space.micro or 1
    least: dict[Grid, Needs] = {grid: workload.needs(grid, smallest) for grid in grids}
    grid = min(least, key=lambda grid: (least[grid].total, grid.data))
    needs, usable, memory = least[grid], workload.usable, workload.device_memory or 0.0
    fitting = fewest(workload, space, devices_per_node)
    near = nearest(workload, space, grid.size, devices_per_node) if fitting and fitting.size < grid.size else None
    return UsageError(
        f"{space.model.name} fits on no grid of {grid.size} devices: a rank needs {needs.total / 1e9:.4g} GB at "
        f"least (grid {grid}, --micro-batch {smallest}, {needs.state / 1e9:.4g} GB of it for weights, gradients and "
        f"optimizer), {(needs.total - usable) / 1e9:.3g} GB more than the {usable / 1e9:.4g} GB that a plan "
        f"counts on, {USABLE:.0%} of a device's {memory / 1e9:.4g} GB; "
        + (
            f"the smallest number of devices, in whole nodes, on which it fits is {fitting.size} (grid {fitting})"
            + (f", the nearest {near.size} (grid {near})." if near else ".")
            if fitting
            else "it fits on no number of devices."
        )
    )


def nearest(workload: Workload, space: SearchSpace, devices: int, devices_per_node: int) -> Grid | None:
    """Find a grid on which the workload fits of as nearly so many devices as whole nodes allow, up to half as many more
    or fewer; None if there is none.
    """
    smallest, nodes = space.micro or 1, devices / devices_per_node
    for away in range(devices // devices_per_node // 2 + 1):
        for number in dict.fromkeys((ceil(nodes) + away, floor(nodes) - away)):
            ranks = number * devices_per_node
            if ranks == devices or ranks < 1 or (sequences := space.batch(ranks)) is None:
                continue
            for grid in space.grids(ranks, sequences):
                if workload.needs(grid, smallest).total <= workload.usable:
                    return grid
    return None


def fewest(workload: Workload, space: SearchSpace, devices_per_node: int) -> Grid | None:
    """Find the smallest grid, in whole nodes or on one, on which the workload fits; None if it fits on none."""
    best: Grid | None = None
    smallest, most = space.micro or 1, int(2 * space.sequences)
    for x, y in space.planes:
        if best is not None and x * y >= best.size:
            break
        for z in space.shards(x, y):
            if z > most or (best is not None and x * y * z >= best.size):
                break
            if workload.needs(Grid(x, y, z), smallest).total > workload.usable:
                continue
            wider = _whole_nodes(Grid(x, y, z), space, devices_per_node)
            if wider is not None and (best is None or wider.size < best.size):
                best = wider
    return best


def _whole_nodes(grid: Grid, space: SearchSpace, devices_per_node: int) -> Grid | None:
    """Widen the grid over data until it fills nodes, or lies on one, and can share the batch; None if it can't."""
    widest = devices_per_node // gcd(grid.size, devices_per_node)
    for data in range(1, min(widest, int(2 * space.sequences)) + 1):
        wider = replace(grid, data=data)
        if wider.size > devices_per_node and wider.size % devices_per_node:
            continue
        sequences = space.batch(wider.size)
        if sequences is not None and sequences % (wider.batch_split * (space.micro or 1)) == 0:
            return wider
    return None
