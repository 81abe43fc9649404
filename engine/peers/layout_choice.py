"""Layouts of a peer that are worth a measurement on a number of devices, in micro-batches that fit. No torch.

Of a few devices these are all that divide the network, with tensor parallelism within a node. Of more, one, by what its
users do: tensor ranks fill a node, there are as few pipeline stages as the memory allows, and data ranks are what is
left (Narayanan et al. 2021, takeaways 1 to 3); hybrid shards fill a node, or as many nodes as they need. Each takes the
largest micro-batches with which it fits; one that doesn't fit says so. Of a pipeline they are so small that its stages
are idle for at most BUBBLE of a step, where there are enough sequences (the same, 2.2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.batch import Batch
from engine.grid import TENSOR, Axis, Grid
from engine.peers.comparison import Case, Comparison
from engine.peers.layout import Layout, PeerLayout, accepted, check_split, every
from engine.peers.memory import Room, host_bytes, peer
from engine.planning.grids import divisors, factorisations

FEW = 16
BUBBLE = 0.05
HARDLY_IDLE = ("pipeline-interleaved", "pipeline-zero-bubble")
"""Peers whose schedules fill that time."""


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """Layout of a peer with its micro-batches."""

    layout: PeerLayout
    micro_batch: int
    """Sequences that a rank takes at once."""
    needs: float
    """Bytes of a device."""
    lacking: str | None
    """Why it doesn't fit, in a sentence; None where it does."""


def layout_choices(
    comparison: Comparison, case: Case, ranks: int, per_node: int, room: Room, given: int | None = None
) -> list[LayoutChoice]:
    """List every layout of the comparison's peer of few ranks; of more the first that fits, or that which needs least.
    None where nothing divides the network and the batch. given: sequences of a micro-batch of each.
    """
    layouts: Sequence[PeerLayout]
    usual: Sequence[PeerLayout]  # the likeliest first
    if comparison.splits:
        fitting = every(ranks, comparison.splits, case.model, case.batch.sequences)
        split = [one for one in fitting if one.tensor <= per_node and _is_about(comparison, one)]
        most = max((one.tensor for one in split), default=1)
        full = sorted((one for one in split if one.tensor == most), key=lambda one: one.pipeline)
        layouts, usual = split, full
    else:
        grids = [
            grid
            for grid in factorisations(ranks)
            if _uses(comparison, grid)
            and grid[TENSOR] <= per_node
            and accepted(check_split, case.model, grid, Batch(case.batch.sequences))
        ]
        ordered = sorted(grids, key=lambda grid: (grid.shards < per_node, grid.shards))
        layouts, usual = grids, ordered
    if ranks <= FEW:
        return [choose_micro_batch(comparison, case, one, per_node, room, given) for one in layouts]
    found = []
    for one in usual:
        found.append(choose_micro_batch(comparison, case, one, per_node, room, given))
        if found[-1].lacking is None:
            return found[-1:]
    return sorted(found, key=lambda one: one.needs)[:1]


def choose_micro_batch(
    comparison: Comparison, case: Case, layout: PeerLayout, per_node: int, room: Room, given: int | None = None
) -> LayoutChoice:
    """Take the micro-batches that are given, or the largest that fit, or the smallest that there are."""
    laid_out = comparison.with_layout(layout, Grid.replicated(layout.size))
    least: tuple[float, int] | None = None
    sizes = _micro_batches(layout, case.batch.sequences, idle=comparison.name not in HARDLY_IDLE)
    for micro_batch in sizes if given is None else [given]:
        needs = peer(laid_out, replace(case, peer_micro_batch=micro_batch), room.device)
        if least is None or needs < least[0]:
            least = needs, micro_batch
        if room.fits(needs):
            break
    assert least is not None
    needs, micro_batch = least
    lacking = room.lack(comparison.name, needs, host_bytes(comparison, case, min(per_node, layout.size)))
    return LayoutChoice(layout, micro_batch, needs, lacking)


def _micro_batches(layout: PeerLayout, sequences: int, *, idle: bool) -> list[int]:
    """List what is taken unasked, then all that are smaller, the largest first. idle: whether stages wait for the first
    and the last micro-batches.
    """
    if isinstance(layout, Grid):
        share = unasked = sequences // layout.batch_split
    else:
        share = sequences // layout.data
        unasked = share // layout.for_batch(Batch(sequences)).micro_batches
    sizes = [size for size in reversed(divisors(share)) if size <= unasked]
    if isinstance(layout, Grid) or layout.pipeline == 1 or not idle:
        return sizes
    others = layout.pipeline - 1
    return [size for size in sizes if others <= BUBBLE * (share / size + others)] or sizes[-1:]


def _is_about(comparison: Comparison, layout: Layout) -> bool:
    """Say whether it has the split without which it is another comparison."""
    return comparison.about is None or getattr(layout, comparison.about) > 1


def _uses(comparison: Comparison, grid: Grid) -> bool:
    """Say whether the peer can do what the grid does, along all of its axes."""
    axes = grid.size == 1 or all(grid[Axis(name)] > 1 for name in comparison.axes)
    return axes and accepted(comparison.with_grid, grid)
