"""Which layouts of a peer are worth a measurement on so many devices. No torch.

Of a few devices all that fit, with tensor parallelism within a node. Of more, one, by what its users do: tensor ranks
fill a node, there are as few pipeline stages as the memory allows, and data ranks are what is left (Narayanan et al.
2021, takeaways 1 to 3); hybrid shards fill a node, too.
"""

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.peers.contest import Contest
from engine.peers.layout import Layout, every
from engine.planning.fit import check_grid
from engine.planning.grids import factorisations

FEW = 16
BYTES = 18
"""A parameter takes so many in mixed precision: two for it, four each for gradient, master and AdamW's two. Data ranks
divide all of them (FSDP, ZeRO-3), all but the weight's (ZeRO-2), those of master and AdamW (ZeRO-1), or none.
"""
FILLED = 0.7
"""Of a device's memory, by these; the rest is for activations."""


def candidates(
    contest: Contest, ranks: int, per_node: int, model: Architecture, sequences: int, memory_bytes: float | None
) -> list[Layout | Grid]:
    """Layouts of the contest's peer, each of which fits; none where nothing does. memory_bytes: of a device."""
    if not contest.splits:
        grids = [grid for grid in factorisations(ranks) if _uses(contest, grid) and grid.x <= per_node]
        of_nodes = [grid for grid in grids if grid.z == per_node] if ranks > FEW and len(grids) > 1 else grids
        return [grid for grid in of_nodes or grids if _fits(grid, model, sequences)]
    fitting = [one for one in every(ranks, contest.splits, model, sequences) if one.tensor <= per_node]
    if contest.about is not None:
        fitting = [one for one in fitting if getattr(one, contest.about) > 1]
    if ranks <= FEW or not fitting:
        return list(fitting)
    most = max(one.tensor for one in fitting)
    full = sorted((one for one in fitting if one.tensor == most), key=lambda one: one.pipeline)
    held = [one for one in full if _held(one, contest, model, memory_bytes)]
    return [(held or full[-1:])[0]]


def _uses(contest: Contest, grid: Grid) -> bool:
    """Whether the peer can do what the grid does, along all of its axes."""
    try:
        contest.on(grid)
    except UsageError:
        return False
    return grid.size == 1 or all(grid[Axis(name)] > 1 for name in contest.axes)


def _fits(grid: Grid, model: Architecture, sequences: int) -> bool:
    try:
        check_grid(model, grid, Batch(sequences))
    except UsageError:
        return False
    return True


def _held(layout: Layout, contest: Contest, model: Architecture, memory_bytes: float | None) -> bool:
    each = BYTES - contest.shared + contest.shared / layout.data
    needed = each * model.parameters / (layout.tensor * layout.pipeline)
    return memory_bytes is None or needed <= FILLED * memory_bytes
