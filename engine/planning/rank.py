"""Every valid grid of a job that fits in memory, the best first (axonn-sc24 V-B, par4d V). No torch in it.

The order is that of the communication time by the papers' equations. With one bandwidth for every axis it is the
placement-agnostic order of par4d V-A, with Eq. 7's the placement-aware one. Grids whose planes of x and y lie across
the border of two nodes, which Eq. 7 does not know, come after all others; as run they cost what their links do.

Ties: z and data are interchangeable in the equations where they share a bandwidth. Costs that differ by less than
TOLERANCE are a tie, which goes to the grid that costs clearly less (by CLEARLY) as run: with the latency of rings, and
all that the engine repeats for recomputation and in every micro-batch; then to that with more data; then larger x, y.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from engine.footprint.fit import fits_nodes
from engine.footprint.memory import Footprint, Needs, usable
from engine.grid import INNER, REPLICATING, STREAM, Grid
from engine.planning.costs import Costs, Seconds
from engine.planning.grids import divisors
from engine.simulator.bandwidth import Bandwidths, LinksOn, papers_links, run_links
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.simulator.simulate import Forecast

TOLERANCE = 1e-9
"""Relative; sums of the same terms in another order differ by less."""
WIDEST = (*REPLICATING, INNER, STREAM)
"""Of grids that cost the same that with the most ranks on the first of these comes first."""
CLEARLY = 0.01
"""Relative; less than that an estimate of what a run costs can't tell apart."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One grid of a plan. micro: sequences that a rank takes at once. equations, as_run: seconds of communication.

    forecast: of a step, None until there is one.
    """

    grid: Grid
    micro: int
    needs: Needs
    equations: Seconds
    as_run: Seconds
    forecast: "Forecast | None" = None

    @property
    def equations_s(self) -> float:
        """Seconds of communication by Eq. 1 to 7."""
        return sum(self.equations.values())

    @property
    def as_run_s(self) -> float:
        """Seconds of communication as the engine runs it."""
        return sum(self.as_run.values())


@dataclass(frozen=True, slots=True)
class Ranking:
    """candidates: those that fit, best first. valid: how many grids divide the network and the batch."""

    candidates: tuple[Candidate, ...]
    valid: int


@dataclass(frozen=True)
class Workload:
    """A training, its batch settled, on devices of a kind and of some memory.

    device_memory: bytes of one; None takes it to hold everything. whole_shares: where no micro-batch is asked for, a
    rank takes its whole share at once, as a run does; otherwise the micro-batch is chosen.
    """

    training: Training
    device_memory: float | None = None
    device: str = "cuda"
    whole_shares: bool = False

    @property
    def usable(self) -> float:
        """Bytes that a rank may need."""
        return usable(self.device_memory)

    @cached_property
    def _footprints(self) -> dict[int, Footprint]:
        return {}

    def needs(self, grid: Grid, micro: int) -> Needs:
        """Of a rank, in micro-batches of so many sequences."""
        if micro not in self._footprints:
            batch = replace(self.training.batch, micro=micro)
            self._footprints[micro] = Footprint(replace(self.training, batch=batch), self.device)
        return self._footprints[micro].on(grid)

    def settled(self, grid: Grid) -> tuple[int, Needs]:
        """The micro-batch, and what a rank needs with it.

        It is the one that is asked for; else the largest divisor of a rank's share whose step fits in memory, since
        fewer micro-batches gather less and multiply larger matrices; 1 if none fits.
        """
        batch = self.training.batch
        if batch.micro or self.whole_shares:
            micro = batch.at_once(grid)
            return micro, self.needs(grid, micro)
        micro, needs = 1, self.needs(grid, 1)
        larger = divisors(batch.per_rank(grid))[1:] if needs.total <= self.usable else []
        while larger:
            middle = len(larger) // 2
            tried = self.needs(grid, larger[middle])
            if tried.total <= self.usable:
                micro, needs, larger = larger[middle], tried, larger[middle + 1 :]
            else:
                larger = larger[:middle]
        return micro, needs


def rank(
    workload: Workload,
    grids: Sequence[Grid],
    bandwidths: Bandwidths,
    *,
    links: LinksOn | None = None,
    links_as_run: LinksOn | None = None,
    as_run: bool = False,
) -> Ranking:
    """Those of the valid grids that fit, best first. links: of the equations, other than the papers'. links_as_run: of
    a run, other than those of costs.py. as_run: ordered by what a run costs, not by the equations.
    """
    links, links_as_run = links or papers_links(bandwidths), links_as_run or run_links(bandwidths)
    costs = Costs(workload.training)
    found: list[Candidate] = []
    for grid in grids:
        micro, needs = workload.settled(grid)
        if needs.total <= workload.usable:
            equations = costs.equations(grid, links(grid))
            found.append(Candidate(grid, micro, needs, equations, costs.as_run(grid, links_as_run(grid), micro)))
    return Ranking(ordered(found, bandwidths.devices_per_node, as_run=as_run), len(grids))


def ordered(candidates: Sequence[Candidate], devices_per_node: int, *, as_run: bool = False) -> tuple[Candidate, ...]:
    """Best first, by the rule that this file begins with."""
    costs = [candidate.as_run_s if as_run else candidate.equations_s for candidate in candidates]
    first = _levels(costs, TOLERANCE)
    second = _levels([candidate.as_run_s for candidate in candidates], CLEARLY)

    def key(at: int) -> tuple[bool | int, ...]:
        grid = candidates[at].grid
        across = not as_run and not fits_nodes(grid, devices_per_node)
        return across, first[at], second[at], *(-grid[axis] for axis in WIDEST)

    return tuple(candidates[at] for at in sorted(range(len(candidates)), key=key))


def tied(one: float, other: float) -> bool:
    """Whether two costs are the same but for rounding."""
    return abs(one - other) <= TOLERANCE * max(one, other)


def _levels(costs: Sequence[float], tolerance: float) -> list[int]:
    """The place of each among the different ones, from the lowest; those are the same that exceed one by less."""
    levels, level, lowest = [0] * len(costs), 0, None
    for at in sorted(range(len(costs)), key=costs.__getitem__):
        if lowest is None:
            lowest = costs[at]
        elif costs[at] > lowest * (1 + tolerance):
            level, lowest = level + 1, costs[at]
        levels[at] = level
    return levels
