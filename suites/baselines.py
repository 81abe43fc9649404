"""The engine against the papers' baselines and today's trainers, each side on its best layout, in turns.

    reframe -c suites/baselines.py --system local --repeat 3 -r            every peer that is installed, two ranks
    reframe -c suites/baselines.py --system vcluster -n 'wide' -r          one shape of network
    reframe -c suites/baselines.py --system local -n megatron -r           one peer
    reframe -c suites/baselines.py --system frontier -n node               what takes one node

Peers with libraries of their own take environments of their own: ci/peers all makes them; one that isn't there is
skipped and says so, and so is what does not fit. Our side takes the grid that its series fixes, where several were
measured; else the one that par4d plan finds the fastest, where the machine was calibrated, or that the engine chooses;
the result is labelled with which. Each side takes the largest micro-batches with which it fits a device alone, and they
are measured one after the other where a device can't hold both.
A peer is measured on every layout of few devices that fits, and on the one that its users would take of many
(engine/peers/candidates.py); the report takes the fastest of a peer, and of all. A run is one job, a set of processes
that may happen to be faster or slower for one side, and decides nothing: --repeat 3 to 6 do, also of several nights. Of
two jobs the interval is very wide, as Student's t is 12.7.
"""

import reframe as rfm
from reframe.core.builtins import parameter, run_after, run_before, variable
from reframe.core.exceptions import SanityError
from reframe.utility import typecheck as typ

import systems
from engine.grid import Grid
from engine.peers.contest import CONTESTS
from engine.peers.environments import lacking
from engine.peers.memory import Both
from suites.matches import case_of, matches, our_side, room
from suites.night import Worth
from suites.point_training import SYSTEM, PointTraining
from suites.ratios import contest_figures
from suites.series import AUTO, Point
from suites.training import planned_grid


@rfm.simple_test
class Baseline(PointTraining):
    """One contest. rounds: those of the series, unless set. grid_is: who chose ours, in words. apart: one side after
    the other, where a device can't hold both; a series may say so, too.
    """

    descr = "step time against a peer, each on its best layout"
    study = "baselines"
    worth = Worth.PEERS
    match = parameter(list(matches(SYSTEM)), fmt=lambda match: str(match), loggable=True)
    rounds = variable(int, value=0)
    apart = variable(typ.Bool, value=False)
    steps_per_round = variable(int, value=2)
    grid_is = variable(str, value="")
    breakdown = False
    checkpoint_activations = SYSTEM.device.kind == "cuda"

    @property
    def point(self) -> Point:  # type: ignore[override]
        """Of the match."""
        point: Point = self.match.point
        return point

    def own_options(self) -> list[str]:
        return []

    @run_after("init")
    def say_whose_grid_it_is(self) -> None:
        fixed = "fixed by the series after measuring several" if self.grid == self.point.grid else "given by hand"
        self.grid_is = "chosen by the engine" if self.grid == AUTO else fixed

    @run_before("setup")
    def take_the_planners_grid(self) -> None:
        """On a calibrated machine; else the engine's own choice, as in other suites."""
        measured = systems.measured(self.system.name)
        if self.grid == AUTO and measured and measured.performance:
            words = ["--system", self.system.name, "--model", self.model, "--gpus", str(self.num_tasks)]
            words += ["--batch-size", str(self.sequences), "--precision", self.precision]
            words.append("--checkpoint-activations" if self.checkpoint_activations else "--keep-activations")
            self.grid = planned_grid(tuple(words)) or AUTO
            self.grid_is = "found by par4d plan" if self.grid != AUTO else self.grid_is

    def labels(self) -> dict[str, str]:
        return super().labels() | {"grid_is": self.grid_is}

    @run_before("setup")
    def leave_out_what_does_not_fit(self) -> None:
        """A network that -S gives may, and then its job says whether it does."""
        if self.match.lacking and self.model == self.point.model:
            self.skip(self.match.lacking)

    @run_after("setup")
    def take_the_largest_micro_batch_that_fits(self) -> None:
        """Of ours, on the grid that is settled now. Both sides are on the devices at once where both fit."""
        if self.model == self.point.model:
            case, grid = case_of(self.point, self.system), Grid.parse(self.grid)
            there = room(self.system)
            self.micro_batch, needs = our_side(case, grid, there)
            self.apart = self.apart or not Both(needs, self.match.needs).together(there)
            if lacking := there.lacking("the engine", needs):
                self.skip(lacking)

    @run_before("setup")
    def leave_out_what_is_not_installed(self) -> None:
        library = CONTESTS[self.match.peer].library
        if library and not self.is_dry_run() and (reason := lacking(library)):
            self.skip(reason)

    def options(self) -> list[str]:
        series = self.point.series
        words = ["bench", "peers", "--peer", self.match.peer, "--layout", str(self.match.layout), "--grid", self.grid]
        words += ["--model", self.model, "--batch-size", str(self.sequences), "--precision", self.precision]
        words += ["--device", self.device, *self.recompute_options]
        words += ["--micro-batch", str(self.micro_batch)] if self.micro_batch else []
        words += ["--peer-micro-batch", str(self.match.micro_batch)] if self.model == self.point.model else []
        words += ["--rounds", str(self.rounds or series.rounds), "--steps-per-round", str(self.steps_per_round)]
        words += ["--apart"] if self.apart or series.apart else []
        return [*words, *self.peak_options(self.precision)]

    def judge(self) -> None:
        """The engine has found both sides' losses equal before it timed them. A contest that can't be held with that
        network or number format is kept with the reason, and has no figures.
        """
        missing = [asked for asked in self.record["contests"] if asked["missing"]]
        if len(self.record["comparisons"]) + len(missing) != 1:
            raise SanityError(f"the result has {len(self.record['comparisons'])} contests instead of one")

    @run_before("performance")
    def choose_figures(self) -> None:
        """A dry run measures nothing."""
        self.perf_variables.clear()
        if not self.is_dry_run() and self.record["comparisons"]:
            (contest,) = self.record["comparisons"]
            self.add_figures(contest_figures(contest))
