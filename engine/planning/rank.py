"""Ranking of the valid grids of a workload that fit in memory, the best first (axonn-sc24 V-B, par4d V). No torch.

Grids are ordered by their communication time, by the papers' equations or as the engine runs (equations.py). By the
equations one bandwidth for every axis gives the placement-agnostic order of par4d V-A, and Eq. 7's bandwidths give the
placement-aware one. Eq. 7 does not know planes of x and y across the border of two nodes, so grids with such planes
come after all others; as run they cost what their links do.

The equations give many ties, such as between z and data where these share a bandwidth. Costs that differ by less than
TOLERANCE are a tie. It goes to the grid that is by more than CLEARLY cheaper as run, with the latency of rings, all
that the engine repeats for recomputation and in every micro-batch, and compute where it can be estimated; then to the
one with more data, then larger x or y.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from engine.errors import UsageError
from engine.footprint.fit import check_grid, fits_nodes
from engine.footprint.memory import Footprint, usable
from engine.grid import REPLICATING, SPLITTING_FEATURES, TENSOR, Grid
from engine.planning.grids import SearchSpace, divisors, factorisations
from engine.planning.workload import Candidate, Workload
from engine.simulator.bandwidth import Bandwidths, LinksOn, agnostic, papers_links, run_links
from engine.training_record import Training

TOLERANCE = 1e-9
"""Largest share by which sums of the same terms in different orders differ."""
WIDEST = (*REPLICATING, *SPLITTING_FEATURES)
"""Of grids that cost the same, the one with the most ranks on the first of these axes comes first."""
MICROS = 4
"""Sizes of micro-batches, the smallest ones, of which a pipeline's is chosen."""
PIPELINES = 12
"""Pipelines that are ranked, and then simulated."""
CLEARLY = 0.01
"""An estimate of what a run costs can't tell grids apart that differ by a smaller share than this."""
TOLD_APART = 0.07
"""Simulated times that differ by a smaller share don't tell which of two grids is faster: errors within a job scatter
by 6 to 10 % (validation/rows/measured). It was read off the jobs of 2026-11-22, and decides one of them.
"""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Grids that fit, best first."""

    candidates: tuple[Candidate, ...]
    valid: int
    """number of grids that divide the network and the batch"""
    pipelines: tuple[Candidate, ...] = ()


def rank(
    workload: Workload,
    grids: Sequence[Grid],
    bandwidths: Bandwidths,
    *,
    links_as_run: LinksOn | None = None,
    maybe: bool = False,
) -> Ranking:
    """Rank those of the valid grids that fit, best first by the equations.

    links_as_run: links of a run other than those of simulator.bandwidth.run_links. maybe: whether grids are among them
    that may fit, as far as a count can tell.
    """
    links, links_as_run = papers_links(bandwidths), links_as_run or run_links(bandwidths)
    found: list[Candidate] = []
    for grid in grids:
        one = workload.coarse(grid, links_as_run)
        if one is None and maybe:
            least, needs = workload.least(grid)
            if workload.allows(grid, least.batch.micro) and workload.may_fit(least, needs):
                one = workload.candidate(grid, least, links_as_run)
        if one is not None:
            found.append(replace(one, equations=workload.costs(one.training).equations(grid, links(grid))))
    return Ranking(ordered(found, bandwidths.devices_per_node), len(grids))


def cheapest(workload: Workload, grids: Sequence[Grid], bandwidths: Bandwidths) -> Grid | None:
    """Return the grid that fits and whose communication costs least as run; None if none fits.

    Where no micro-batch is asked for, a run takes a rank's whole share at once.
    """
    costs, links, batch = workload.costs(workload.training), run_links(bandwidths), workload.training.batch
    priced = [(sum(costs.as_run(grid, links(grid), batch.at_once(grid)).values()), grid) for grid in grids]
    fit = (
        (cost, grid)
        for cost, grid in sorted(priced, key=lambda one: one[0])
        if workload.allows(grid, batch.micro) and workload.needs(grid, batch.at_once(grid)).total <= workload.usable
    )
    if (first := next(fit, None)) is None:
        return None
    ties = takewhile(lambda one: one[0] <= first[0] * (1 + TOLERANCE), fit)
    return min((first, *ties), key=lambda one: [-one[1][axis] for axis in WIDEST])[1]


def pipelines(
    workload: Workload, grids: Sequence[Grid], links_as_run: LinksOn, ranks_per_core: float = 1.0
) -> tuple[Candidate, ...]:
    """Rank grids with several stages by what a run costs and what its stages are idle, each with several
    micro-batches: the first PIPELINES of those that may fit in memory, best first.

    A stage is idle for (stages - 1) / m of the time of compute with m micro-batches (axonn-ipdps22 IV). Where so many
    ranks share a core, as many stages are as fast as one alone.
    """
    batch, costs, flops = workload.training.batch, workload.costs(workload.training), workload.training.flops
    priced: list[tuple[float, Grid, int]] = []
    for grid in grids:
        links, at_once = links_as_run(grid), grid.stages / ranks_per_core
        compute_s = flops / (grid.size * workload.flops_per_s) if workload.flops_per_s else 0.0
        for micro in [batch.micro] if batch.micro else divisors(batch.per_rank(grid))[:MICROS]:
            passes = batch.per_rank(grid) // micro
            if passes >= at_once and workload.allows(grid, micro):
                idle_s = max(at_once - 1, 0.0) / passes * compute_s
                priced.append((sum(costs.as_run(grid, links, micro).values()) + idle_s, grid, micro))
    fit = (
        replace(one, equations=workload.costs(one.training).equations(grid, links_as_run(grid)))
        for _, grid, micro in sorted(priced, key=lambda one: one[0])
        if (one := workload.choose_staged(grid, micro, links_as_run)) is not None
    )
    return tuple(islice(fit, PIPELINES))


def ordered(candidates: Sequence[Candidate], devices_per_node: int, *, as_run: bool = False) -> tuple[Candidate, ...]:
    """Order the candidates, best first, by the rule that this file begins with. as_run: by the estimate of what a run
    takes, by which a simulation chooses as many as by the equations.
    """
    costs = [candidate.estimate_s if as_run else candidate.equations_s for candidate in candidates]
    first = _levels(costs, TOLERANCE)
    second = _levels([candidate.estimate_s for candidate in candidates], CLEARLY)

    def key(at: int) -> tuple[bool | int, ...]:
        grid = candidates[at].grid
        across = not as_run and not fits_nodes(grid, devices_per_node)
        return across, first[at], second[at], *(-grid[axis] for axis in WIDEST)

    return tuple(candidates[at] for at in sorted(range(len(candidates)), key=key))


def best_first(times_s: Sequence[float], places: Sequence[int | None]) -> list[int]:
    """Order steps by their times, but among those that can't be told apart from the fastest by their places. Steps
    without a place, such as those of pipelines, stay where their times put them.
    """
    order = sorted(range(len(times_s)), key=times_s.__getitem__)
    close = [at for at in order if places[at] is not None and times_s[at] <= times_s[order[0]] * (1 + TOLD_APART)]
    by_place = iter(sorted(close, key=lambda at: places[at] or 0))
    return [next(by_place) if at in close else at for at in order]


def tied(one: float, other: float) -> bool:
    """Say whether two costs are the same but for rounding."""
    return abs(one - other) <= TOLERANCE * max(one, other)


def _levels(costs: Sequence[float], tolerance: float) -> list[int]:
    """Rank the different costs from the lowest, and return the number of each. A cost has the number of the lowest
    one that it exceeds by no more than the tolerance.
    """
    levels, level, lowest = [0] * len(costs), 0, None
    for at in sorted(range(len(costs)), key=costs.__getitem__):
        if lowest is None:
            lowest = costs[at]
        elif costs[at] > lowest * (1 + tolerance):
            level, lowest = level + 1, costs[at]
        levels[at] = level
    return levels


def grid_within_nodes(workload: Workload, ranks: int, devices_per_node: int) -> Grid:
    """Choose tensor parallelism (x) over the devices of a node and hybrid sharding (z and data) across nodes, the
    baseline of axonn-sc24 VII-A: as few shards as fit, which the paper doesn't print, and the rest data.

    Raises UsageError where none fits.
    """
    training, batch = workload.training, workload.training.batch
    space = SearchSpace(training.model, batch.sequences, exact=True, micro=batch.micro)
    inner = min(devices_per_node, ranks)
    fitting = [
        grid
        for grid in space.grids(ranks, batch.sequences)
        if grid[TENSOR] == grid.plane == inner and workload.needs(grid, batch.at_once(grid)).total <= workload.usable
    ]
    if not fitting:
        raise UsageError(
            f"No grid of {ranks} devices with x={inner}, those of a node, and y=1 divides {training.model.name} and "
            "its batch and fits in memory: name the baseline's by --baseline XxYxZxDATA, or other --devices-per-node."
        )
    return min(fitting, key=lambda grid: grid.shards)


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
            grid.plane // grid[TENSOR],
            holding if fits else -holding,
            -grid[TENSOR] if splits else grid[TENSOR],
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
