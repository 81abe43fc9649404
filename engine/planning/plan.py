"""Plan a training on so many devices of a system: the best grids, as a document. No torch."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, floor, gcd

import systems
from engine.errors import UsageError
from engine.footprint.fit import check_host_memory, offloaded_bytes
from engine.footprint.memory import USABLE, Needs
from engine.grid import Grid
from engine.models.mode_choice import ModeName
from engine.planning.document import GridPlan, origin, row
from engine.planning.grids import SearchSpace
from engine.planning.rank import Ranking, pipelines, rank
from engine.planning.workload import Candidate, Workload
from engine.simulator.bandwidth import Bandwidths, agnostic, bandwidths, papers_links
from engine.simulator.machine import MachineModel
from engine.training_record import Training
from systems import System

TOKENS_A_PARAMETER = 20
"""A training on so many tokens gets the most of its flops (Hoffmann et al. 2022)."""
Forecasting = Callable[[Workload, Ranking, MachineModel, int], Sequence[Candidate]]
"""Simulation of the best grids of a ranking: those that fit with the times of their steps, the fastest first, as far as
so many are shown.
"""


def make_plan(
    training: Training,
    space: SearchSpace,
    devices: int,
    system: System,
    *,
    shown: int,
    forecast: Forecasting | None,
    device_memory: float | None = None,
    token_budget: float | None = None,
    placement_aware: bool = True,
    modes: tuple[ModeName, ...] = (),
    recomputes_least: bool = False,
) -> tuple[GridPlan, Bandwidths]:
    """Plan so many of the best grids; return the plan and the system's bandwidths. Raises UsageError if none fits.

    training: its batch is the one that the devices can share, of those near the one of the search space. forecast:
    without it grids are ordered by the papers' equations, and none has several stages. modes: of which each grid has
    the best; none leaves the training's. recomputes_least: whether blocks are recomputed as far as memory asks alone.
    """
    model, sequences = training.model, training.batch.sequences
    measured = systems.measured(system.name)
    memory = device_memory or (system.device.memory_bytes.value if system.device.memory_bytes else None)
    machine = MachineModel.of(system, training.precision, measured, devices) if forecast else None
    links = machine.bandwidths if machine else bandwidths(system, measured)
    ranks, host = min(devices, links.devices_per_node), system.node.memory_bytes
    workload = Workload(
        training,
        memory,
        system.device.kind,
        host_memory=host.value / ranks if host else None,
        modes=modes,
        recomputes_least=recomputes_least,
        flops_per_s=machine.empirical_peak if machine else 0.0,
    )
    grids = space.grids(devices, sequences)
    taken = links if placement_aware else agnostic(links.inter)
    ranking = rank(workload, grids, taken, links_as_run=machine.links if machine else None, maybe=machine is not None)
    candidates: Sequence[Candidate] = ranking.candidates
    in_stages = space.pipelines(devices, sequences) if machine else []
    if not in_stages and space.stages not in (None, 1):
        raise space.no_stages(devices)
    if machine:
        ranked = pipelines(workload, in_stages, machine.links, machine.ranks_per_core)
        ranking = replace(ranking, pipelines=ranked)
    if not (ranking.candidates or ranking.pipelines):
        if host:
            least = min(grids or in_stages, key=partial(offloaded_bytes, training))
            check_host_memory(training, least, host.value, ranks)
        raise refusal(workload, space, grids or in_stages, links.devices_per_node)
    if forecast and machine:
        candidates = forecast(workload, ranking, machine, shown)
    samples = model.task.data.samples
    if token_budget is None and samples == "sequences" and training.optimizer != "none":
        token_budget = float(TOKENS_A_PARAMETER * model.parameters)
    return GridPlan(
        system=system.name,
        machine=origin(system, measured, simulated=machine is not None) if machine or measured else None,
        devices_per_node=links.devices_per_node,
        device_memory_bytes=memory,
        model=model.name,
        parameters=model.parameters,
        devices=devices,
        samples=samples,
        asked_sequences=space.sequences,
        sequences=sequences,
        tokens=sequences * model.sequence,
        training=training.asked(),
        recomputes_least=recomputes_least,
        overlap=str(training.overlap),
        token_budget=token_budget,
        placement_aware=placement_aware,
        ordered_by="simulated" if machine else "equations",
        valid=ranking.valid,
        fit=len(ranking.candidates),
        rows=tuple(
            row(
                place,
                candidate,
                workload,
                {axis: link.bytes_per_s for axis, link in papers_links(taken)(candidate.grid).items()},
                token_budget=token_budget,
                peak_flops=machine.peak_flops if machine else None,
            )
            for place, candidate in enumerate(candidates[:shown], 1)
        ),
    ), links


def refusal(workload: Workload, space: SearchSpace, grids: Sequence[Grid], devices_per_node: int) -> UsageError:
    """Make the error of a workload that fits on none of these grids, which all have as many devices."""
    smallest = space.micro or 1
    least: dict[Grid, Needs] = {grid: workload.least(grid)[1] for grid in grids}
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
    nodes = devices / devices_per_node
    for away in range(devices // devices_per_node // 2 + 1):
        for number in dict.fromkeys((ceil(nodes) + away, floor(nodes) - away)):
            ranks = number * devices_per_node
            if ranks == devices or ranks < 1 or (sequences := space.batch(ranks)) is None:
                continue
            for grid in space.grids(ranks, sequences):
                if workload.least(grid)[1].total <= workload.usable:
                    return grid
    return None


def fewest(workload: Workload, space: SearchSpace, devices_per_node: int) -> Grid | None:
    """Find the smallest grid, in whole nodes or on one, on which the workload fits; None if it fits on none."""
    best: Grid | None = None
    most = int(2 * space.sequences)
    for x, y in space.planes:
        if best is not None and x * y >= best.size:
            break
        shards = range(1, most + 1)
        fitting = bisect_left(shards, x=True, key=partial(_fits, workload, x, y))
        for z in shards[fitting:]:
            if best is not None and x * y * z >= best.size:
                break
            wider = _whole_nodes(Grid(x, y, z), space, devices_per_node)
            if wider is not None and (best is None or wider.size < best.size):
                best = wider
    return best


def _fits(workload: Workload, x: int, y: int, z: int) -> bool:
    return workload.least(Grid(x, y, z))[1].total <= workload.usable


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
