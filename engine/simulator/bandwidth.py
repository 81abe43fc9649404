"""The groups of an axis find a bandwidth that follows from their place (axonn-sc24 V-B, par4d V-B). No torch in it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.grid import CUTTING_STAGES, Axis, Grid
from engine.overlap.flags import HOP_S
from engine.simulator.collectives import WITHIN_NODE, Link, Links

if TYPE_CHECKING:
    from systems import Count, Fact, Measured, System

LinksOn = Callable[[Grid], Links]
ANY_NUMBER = 1 << 62
"""A node with so many ranks holds every job."""


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bandwidths of one machine, in bytes/s and one direction."""

    devices_per_node: int
    inter: float
    """Between two nodes (beta_inter)."""
    within: float
    intra: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """Within a node, by (g0, g1): for groups of g1 ranks that are g0 apart, while all groups of the node communicate at
    once (the paper's case 1); other groups find `within`.
    """
    of_rank: float = inf
    """Most that one rank sends to other nodes, such as the rate of its NIC where a node has several. The papers have no
    such limit: without it Eq. 7 is theirs.
    """
    neighbours: int = ANY_NUMBER
    """Devices within which `intra` holds: messages that leave them find `within`."""

    def along(self, grid: Grid, axis: Axis) -> float:
        """Give the bytes/s that one group of the axis finds while all of them communicate (axonn-sc24 case 1, Eq. 7).

        Where a group leaves the node it is beta_i = beta_inter / min(G_node, G_0 ... G_i-1), but not more than the
        group's ranks on a node can send together.
        """
        inner = grid.stride(axis)
        if inner * grid[axis] <= self.devices_per_node:
            return self.intra.get((inner, grid[axis]), self.within)
        return self._between(inner, max(1, self.devices_per_node // inner))

    def leaves_node(self, grid: Grid, axis: Axis) -> bool:
        """Say whether groups of the axis lie on several nodes: they are larger than a node, or don't fill it evenly."""
        span = grid.stride(axis) * grid[axis]
        return grid.size > self.devices_per_node and (span > self.devices_per_node or self.devices_per_node % span != 0)

    def on_two_nodes(self, grid: Grid, axis: Axis, one: int, other: int) -> bool:
        """Say whether any two ranks at these coordinates of the axis, and else at the same, lie on two nodes."""
        inner, node = grid.stride(axis), self.devices_per_node
        if grid.size <= node:
            return False
        span = inner * grid[axis]
        groups = {number * span % node for number in range(min(grid.size // span, node))}  # where on a node each begins
        ranks = [first + rank for first in groups for rank in range(min(inner, node))]
        return any((rank + one * inner) // node != (rank + other * inner) // node for rank in ranks)

    def hop_leaves_node(self, grid: Grid) -> bool:
        """Say whether messages between any two stages, one after the other, leave their node."""
        return any(self.on_two_nodes(grid, CUTTING_STAGES, stage, stage + 1) for stage in range(grid.stages - 1))

    def of_message(self, grid: Grid, axis: Axis, *, leaves_node: bool, link: float = 1.0) -> float:
        """Give the bytes/s of a message along the axis, beside those of its neighbours, where `link` of the network's
        bandwidth is reached.
        """
        if leaves_node:
            return min(link * self._between(grid.stride(axis), 1), self.within)
        stride = grid.stride(axis)
        return self.intra.get((stride, 2), self.within) if stride * grid[axis] <= self.neighbours else self.within

    def links(self, grid: Grid, group: Callable[[Axis], Link], message: Callable[[bool], Link]) -> Links:
        """Give the links of all axes, which are those of their groups, but on the axis of stages that of the slowest
        message. message: makes it, where messages leave their node and where they don't.
        """
        return {axis: group(axis) for axis in Axis} | {CUTTING_STAGES: message(self.hop_leaves_node(grid))}

    def in_a_run(self, grid: Grid, axis: Axis, link: float = 1.0) -> float:
        """Give the bytes/s that one group finds in a run, where `link` of the network's bandwidth is reached.

        Beyond Eq. 7, a group that is smaller than a node but lies across two leaves them by one rank, and no ring that
        leaves its nodes is faster than one within, as it uses the links there, too.
        """
        if not self.leaves_node(grid, axis):
            return self.along(grid, axis)
        inner = grid.stride(axis)
        across = inner * grid[axis] < self.devices_per_node
        found = self._between(inner, 1 if across else max(1, self.devices_per_node // inner))
        return min(link * found, self.within)

    def _between(self, inner: int, ranks_on_node: int) -> float:
        return min(ranks_on_node * self.of_rank, self.inter / min(self.devices_per_node, inner))


def agnostic(bandwidth: float = 1.0) -> Bandwidths:
    """Make a machine with one bandwidth, whatever the placement (par4d V-A): one node that holds every job."""
    return Bandwidths(devices_per_node=ANY_NUMBER, inter=bandwidth, within=bandwidth)


def papers_links(bandwidths: Bandwidths) -> LinksOn:
    """Make the papers' links: they have no latency, and a bandwidth by the grid's placement (axonn-sc24 Eq. 7)."""

    def links(grid: Grid) -> Links:
        return bandwidths.links(
            grid,
            lambda axis: Link(bandwidths.along(grid, axis)),
            lambda leaves: Link(bandwidths.of_message(grid, CUTTING_STAGES, leaves_node=leaves)),
        )

    return links


def run_links(bandwidths: Bandwidths) -> LinksOn:
    """Make links with what the papers leave out: a latency of each step of a ring, and Bandwidths.in_a_run."""

    def link(grid: Grid, axis: Axis) -> Link:
        latency_s = HOP_S * (1 if bandwidths.leaves_node(grid, axis) else WITHIN_NODE)
        return Link(bandwidths.in_a_run(grid, axis), latency_s)

    return lambda grid: {axis: link(grid, axis) for axis in Axis}


def bandwidths(system: "System", measured: "Measured | None") -> Bandwidths:
    """Take what was measured on a system, and what its file says where nothing was.

    All ranks of a node together measure its way out (inter), one of them alone of_rank; where they are published they
    are all NICs of a node and one of them. A pair (g0, g1) that wasn't measured counts as the slowest that was. A
    machine that is no cluster is one node, whatever a job's size.

    Raises UsageError, which names the facts that are missing.
    """
    if missing := lacking(system, measured):
        raise UsageError(
            f"No bandwidths were measured on {system.name}, and its file lacks {' and '.join(missing)}: "
            f"run par4d calibrate --system {system.name} there, or add what is missing with its source."
        )
    node, intra = system.node, measured.intra_of() if measured else {}
    between = measured.inter if measured else None
    stated = node.intra_node_bytes_per_s.value if node.intra_node_bytes_per_s else inf
    within = min(intra.values(), default=stated)
    neighbours = ANY_NUMBER
    if node.neighbours and not intra:
        neighbours = node.neighbours.devices.value
        intra = _of_neighbours(neighbours, node.neighbours.bytes_per_s.value)
    if _is_one_node(system):
        return Bandwidths(ANY_NUMBER, inter=within, within=within, intra=intra, neighbours=neighbours)
    devices = node.devices.value if node.devices else measured.devices_per_node if measured else 1
    if between is not None:
        of_rank, inter = between.bytes_per_s, between.node_rate()
    else:
        assert node.nics is not None
        assert node.nic_bytes_per_s is not None
        of_rank, inter = node.nic_bytes_per_s.value, node.nics.value * node.nic_bytes_per_s.value
    return Bandwidths(devices, inter=inter, within=within, intra=intra, of_rank=of_rank, neighbours=neighbours)


def _of_neighbours(devices: int, bytes_per_s: float) -> dict[tuple[int, int], float]:
    """Give the bandwidths of groups that lie among so many neighbours."""
    pairs = ((apart, size) for apart in range(1, devices) for size in range(2, devices // apart + 1))
    return {(apart, size): bytes_per_s for apart, size in pairs if devices % (apart * size) == 0}


def lacking(system: "System", measured: "Measured | None") -> list[str]:
    """List the facts that bandwidths need and a system's file lacks."""
    node, one_node = system.node, _is_one_node(system)
    needed: dict[str, Count | Fact | None] = {}
    if measured is None and not one_node:
        needed["node.devices"] = node.devices
    if not (measured and (measured.intra or measured.devices_per_node == 1)):
        needed["node.intra_node_bytes_per_s"] = node.intra_node_bytes_per_s
    if not (measured and measured.inter) and not one_node:
        needed |= {"node.nics": node.nics, "node.nic_bytes_per_s": node.nic_bytes_per_s}
    return [name for name, fact in needed.items() if fact is None]


def _is_one_node(system: "System") -> bool:
    return bool(system.partitions) and all(partition.is_local for partition in system.partitions)
