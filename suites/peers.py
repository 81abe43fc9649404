"""The engine's step time is compared with that of other people's parallelism, on the same ranks.

    reframe -c suites/peers.py --system vcluster -n 'peer=(fsdp2|hsdp)' --repeat 3 -r
    reframe -c suites/peers.py --system local -S rounds=12
    reframe -c suites/peers.py --system perlmutter -S model=gpt-5b -n 'peer=fsdp2%'

Both sides run in turns in the same processes (python -m engine bench peers), so that a noisy machine disturbs them
alike. A ratio below 1 is the engine's win. A run is one job, which decides nothing, as each set of processes is fast or
slow by about 1 % of its own: the report decides by an interval over jobs, and --repeat 3 to 6 are wanted. Each peer
runs on those grids that it has something like, and with networks that it can train as the engine does; the others are
skipped and say why. Where a device can't hold both sides, they run one after the other.
"""

import reframe as rfm
from reframe.core.builtins import parameter, run_before, variable

from engine.errors import UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.peers.registry import COMPARISONS
from suites.base.contests import PeerComparison
from suites.base.engine_test import EngineTest, command
from suites.base.training import OfSeries, Refused, points_of


def no_match(name: str, grid: str, model: str) -> str | None:
    """Say why that peer can't be compared on that grid with that network; None if it can. Raises Refused."""
    if COMPARISONS[name].splits:
        return f"{name} splits ranks in ways that no grid has: suites/baselines.py compares it"
    try:
        network = lookup(model)
    except UsageError as error:
        raise Refused(str(error)) from None
    try:
        COMPARISONS[name].with_grid(Grid.parse(grid)).check(network)
    except UsageError as error:
        return str(error)
    return None


@rfm.simple_test
class Peers(PeerComparison, OfSeries, EngineTest):
    """One contest on one grid. device: as of every test; the number format is the series'."""

    descr = "step time against another way to train the same network"
    study = "peers"
    peer = parameter(sorted(COMPARISONS), type=str, loggable=True)
    point = points_of("peers")
    model = variable(str, value="", loggable=True)
    rounds = variable(int, value=6)  # of fewer one job has no interval

    @run_before("setup")
    def leave_out_what_has_no_match(self) -> None:
        if reason := no_match(self.peer, self.point.grid, self.model):
            self.skip(reason)

    def options(self) -> list[str]:
        point = self.point
        words = command("bench peers", peer=self.peer, grid=point.grid, model=self.model, batch_size=point.sequences)
        words += command("", precision=point.series.precision, device=self.device) + self.device_memory_options
        return words + command("", rounds=self.rounds, steps_per_round=self.steps_per_round)
