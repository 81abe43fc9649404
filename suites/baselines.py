"""The engine takes turns with the papers' baselines and today's trainers, each side laid out its own way.

    reframe -c suites/baselines.py --system local --repeat 3 -r            every peer that is installed, two ranks
    reframe -c suites/baselines.py --system vcluster -n 'wide' -r          one shape of network
    reframe -c suites/baselines.py --system local -n megatron -r           one peer
    reframe -c suites/baselines.py --system frontier -n node               what takes one node
    reframe -c suites/baselines.py --system local -S breakdown=yes -r      with each side's step in its parts

Peers with libraries of their own take environments of their own: ci/peers all makes them; one that isn't there is
skipped and says so. A contest that does not fit takes no allocation: its test runs beside ReFrame, where the engine
writes what it needs, for the report. Our side takes the grid that par4d plan finds the fastest, where the machine was
calibrated, or that the engine chooses, unless its series fixes one; the result is labelled with which. Each side takes
the largest micro-batches with which it fits a device alone, or those of a published row; where a device can't hold
both, the engine measures one after the other. A peer is measured on every layout of few devices that fits, and on the
one that its users would take of many (engine/peers/layout_choice.py); the report takes the fastest of a peer, and of
all. A run is one job, a set of processes that may happen to be faster or slower for one side, and decides nothing:
--repeat 3 to 6 do, also of several nights. Of two jobs the interval is very wide, as Student's t is 12.7.
"""

import math

import reframe as rfm
from reframe.core.builtins import parameter, run_after, run_before, variable

import systems
from engine.grid import Grid
from engine.peers.comparison import Sampling
from engine.peers.registry import COMPARISONS, environment_lack
from engine.pipeline.registry import ScheduleChoice
from suites.base.contests import PeerComparison, case_of, matches, our_micro_batch, room
from suites.base.engine_test import command
from suites.base.planned import OnPlannersGrid
from suites.base.running import Worth
from suites.base.series import AUTO, Point
from suites.base.training import SYSTEM, PlannedGrid, PointTraining


@rfm.simple_test
class Baseline(PeerComparison, OnPlannersGrid, PointTraining):
    """One contest. rounds, steps_per_round: as many as the series says, by default; breakdown: or where it says so.
    grid_is: of our side. loss_scale: of both sides in fp16, where the engine's own overflows.
    """

    descr = "step time against a peer, each laid out its own way"
    study = "baselines"
    worth = Worth.PEERS
    longest_collective_s = longest_meeting_s = math.inf  # a side's round and its warm-up, of steps of ten minutes
    match = parameter(list(matches(SYSTEM)), fmt=lambda match: str(match), loggable=True)
    rounds = variable(int, value=0)
    steps_per_round = 0
    loss_scale = variable(float, type(None), value=None)
    fixed_by_series = "fixed by the series after measuring several"
    planned: PlannedGrid | None = None
    breakdown = False
    checkpoint_activations = SYSTEM.device.kind == "cuda"

    @property
    def point(self) -> Point:  # type: ignore[override]
        point: Point = self.match.point
        return point

    def steps_of_warmup(self) -> int:
        """Count the untimed steps of a side each time that it is built: the engine's own number unless given."""
        series = self.point.series
        return series.warmup if "warmup" in series.model_fields_set else Sampling().warmup

    def own_options(self) -> list[str]:
        return []

    @property
    def is_known_to_fit(self) -> bool:
        """Whether both sides take the micro-batches of a published row, unless -S names another network."""
        return self.point.series.known_to_fit and self.model == self.point.model

    def plan_options(self, data: str) -> list[str]:
        return super().plan_options(data) + command("", seq=self.point.series.sequence)

    def plan_grid(self, **own: object) -> PlannedGrid | None:
        given = self.is_known_to_fit or self.micro_batch_by_hand
        return super().plan_grid(seq=self.point.series.sequence, micro_batch=self.micro_batch if given else None, **own)

    @run_after("init")
    def take_no_allocation_for_what_does_not_fit(self) -> None:
        """Ask for no allocation, but for a network of -S, which may fit all the same: its job says whether it does."""
        self.local = not self.match.fits and self.model == self.point.model

    @run_before("setup")
    def take_the_planners_grid(self) -> None:
        """Take the planner's grid on a calibrated machine, and else the engine's own choice, as in other suites."""
        measured = systems.measured(self.system.name)
        if self.grid == AUTO and measured and measured.performance:
            self.planned = self.plan_grid()

    @run_after("setup")
    def take_the_largest_micro_batch_that_fits(self) -> None:
        """Our side is on the grid that is settled now."""
        if self.micro_batch_by_hand:
            return
        if self.model == self.point.model:
            case = case_of(self.point, self.system)
            self.micro_batch = our_micro_batch(case, Grid.parse(self.grid), room(self.system))
        if self.planned is not None and self.planned.schedule and not self.is_known_to_fit:
            self.micro_batch = self.planned.micro_batch

    @run_before("setup")
    def leave_out_what_is_not_installed(self) -> None:
        library = COMPARISONS[self.match.peer].library
        if library and not self.is_dry_run() and (reason := environment_lack(library)):
            self.skip(reason)

    def options(self) -> list[str]:
        series = self.point.series
        schedule = self.planned and self.planned.schedule
        sides = command("", peer=self.match.peer, layout=self.match.layout, grid=self.grid)
        rounds = command(
            "",
            tune_matmul=self.tune_matmul,
            loss_scale=self.loss_scale,
            peer_micro_batch=self.match.micro_batch if self.model == self.point.model else None,
            rounds=self.rounds or series.rounds,
            steps_per_round=self.steps_per_round or series.steps_per_round,
            warmup=self.warmup,
            breakdown=self.breakdown or series.breakdown,
        )
        trained = command(
            "",
            seq=series.sequence,
            reduce_dtype=self.asked.reduce_dtype,
            micro_batch=self.micro_batch,
            despite_estimate=self.is_known_to_fit,
        )
        words = ["bench", "peers", *sides, *self.contest_options, *trained]
        words += ScheduleChoice.parse(schedule).words if schedule else []
        return [*words, *rounds, *self.peak_options(self.precision)]

    def node_options(self) -> list[str]:
        """Return the node's memory for peers that make whole networks first, where the system's file has it."""
        memory, devices = self.system.node.memory_bytes, self.system.node.devices
        if memory is None:
            return []
        return command("", node_memory=f"{memory.value:.0f}", devices_per_node=devices and devices.value)
