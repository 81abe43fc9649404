"""The engine's step time by that of other people's parallelism, on the same ranks.

    reframe -c suites/peers.py --system vcluster -n 'peer=(fsdp2|hsdp)' -r
    reframe -c suites/peers.py --system local -S rounds=6

Both sides run in turns in the same processes (python -m engine bench peers), so that a noisy machine disturbs them
alike. A ratio below 1 is the engine's win. Each peer runs on those grids that it has something like.
"""

import json
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import parameter, performance_function, run_after, run_before, sanity_function, variable

from engine.errors import UsageError
from engine.grid import Grid
from engine.peers.contest import CONTESTS
from suites.engine_test import RESULT, EngineTest
from suites.point_training import SYSTEM
from suites.series import points


def fits(name: str, grid: str) -> bool:
    """Whether the peer has something like that grid."""
    try:
        CONTESTS[name].on(Grid.parse(grid))
    except UsageError:
        return False
    return True


@rfm.simple_test
class Peers(EngineTest):
    """One contest on one grid."""

    descr = "step time against another way to train the same network"
    valid_systems = ["+gloo"]
    peer = parameter(sorted(CONTESTS), type=str, loggable=True)
    point = parameter(points("peers", SYSTEM.name), fmt=lambda point: str(point), loggable=True)
    model = variable(str, value="", loggable=True)
    rounds = variable(int, value=4)
    steps_per_round = variable(int, value=2)
    tags = {"peers"}

    @run_after("init")
    def take_point(self) -> None:
        self.num_tasks = self.point.devices
        self.time_limit = self.point.series.time_limit

    @run_before("setup")
    def leave_out_what_has_no_match(self) -> None:
        self.skip_if(not fits(self.peer, self.point.grid), f"{self.peer} has nothing like grid {self.point.grid}")

    def options(self) -> list[str]:
        words = ["bench", "peers", "--peer", self.peer, "--grid", self.point.grid]
        words += ["--model", self.model or self.point.model]
        words += ["--batch-size", str(self.point.sequences), "--rounds", str(self.rounds)]
        words += ["--steps-per-round", str(self.steps_per_round)]
        return words

    def labels(self) -> dict[str, str]:
        return {}

    @sanity_function
    def both_sides_were_measured(self) -> bool:
        """The engine has checked that both sides have the same losses before it times them."""
        self.record = json.loads(Path(self.stagedir, RESULT).read_text())
        return len(self.record["comparisons"]) == 1

    @performance_function("x")
    def ratio(self) -> float:
        """The engine's median step time by the peer's."""
        return float(self.record["comparisons"][0]["ratio"])

    @performance_function("s")
    def engine_step(self) -> float:
        return float(self.record["comparisons"][0]["ours_median_s"])

    @performance_function("s")
    def peer_step(self) -> float:
        return float(self.record["comparisons"][0]["peer_median_s"])
