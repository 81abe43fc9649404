"""The engine against the papers' baselines and today's trainers, each side on its best layout, in turns.

    reframe -c suites/baselines.py --system local -r                       every peer that is installed, two ranks
    reframe -c suites/baselines.py --system vcluster -n 'wide' -r          one shape of network
    reframe -c suites/baselines.py --system local -n megatron -r           one peer
    reframe -c suites/baselines.py --system frontier -n node               what takes one node

Peers with libraries of their own take environments of their own: ci/peers all makes them; one that isn't there is
skipped and says so. Our side takes the grid of its series, where several were measured; else the one that par4d plan
finds the fastest, where the machine was calibrated, or that the engine chooses. A peer is measured on every layout of
few devices that fits, and on the one that its users would take of many (engine/peers/candidates.py); the report takes
the fastest of a peer, and of all. A job is one set of processes, which may happen to be 1 % faster or slower for one
side: --repeat 2 or more decide who is faster, also of several nights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import reframe as rfm
from reframe.core.builtins import parameter, run_before, variable
from reframe.core.exceptions import SanityError
from reframe.utility import typecheck as typ

import systems
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.peers.candidates import candidates
from engine.peers.contest import ALONE, CONTESTS
from engine.peers.environments import lacking
from engine.peers.layout import Layout
from suites.point_training import SYSTEM, PointTraining
from suites.series import AUTO, Point, points
from suites.training import planned_grid


@dataclass(frozen=True, slots=True)
class Match:
    """A peer on one of its layouts."""

    point: Point
    peer: str
    layout: Layout | Grid

    def __str__(self) -> str:
        return f"{self.point}-{self.peer}-{self.layout}"


def matches() -> Iterator[Match]:
    """Of every point with every peer that can train its network."""
    per_node = SYSTEM.node.devices.value if SYSTEM.node.devices else None
    memory = SYSTEM.device.memory_bytes.value if SYSTEM.device.memory_bytes else None
    for point in points("baselines", SYSTEM.name):
        network = lookup(point.model)
        for name in sorted(set(CONTESTS) - set(ALONE)):
            own = per_node or point.devices
            for layout in candidates(CONTESTS[name], point.devices, own, network, point.sequences, memory):
                yield Match(point, name, layout)


@rfm.simple_test
class Baseline(PointTraining):
    """One contest. rounds: those of the series, unless set. apart: one side after the other, where a device can't hold
    both; a series may say so, too.
    """

    descr = "step time against a peer, each on its best layout"
    study = "baselines"
    match = parameter(list(matches()), fmt=lambda match: str(match), loggable=True)
    rounds = variable(int, value=0)
    apart = variable(typ.Bool, value=False)
    steps_per_round = variable(int, value=2)
    breakdown = False
    checkpoint_activations = SYSTEM.device.kind == "cuda"

    @property
    def point(self) -> Point:  # type: ignore[override]
        """Of the match."""
        point: Point = self.match.point
        return point

    def own_options(self) -> list[str]:
        return []

    @run_before("setup")
    def take_the_planners_grid(self) -> None:
        """On a calibrated machine; else the engine's own choice, as in other suites."""
        measured = systems.measured(self.system.name)
        if self.grid == AUTO and measured and measured.performance:
            words = ["--system", self.system.name, "--model", self.model, "--gpus", str(self.num_tasks)]
            words += ["--batch-size", str(self.sequences), "--precision", self.precision]
            words.append("--checkpoint-activations" if self.checkpoint_activations else "--keep-activations")
            self.grid = planned_grid(tuple(words)) or AUTO

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

    @property
    def contest(self) -> dict[str, Any]:
        """What the engine says of it."""
        (contest,) = self.record["comparisons"]
        return dict(contest)

    @run_before("performance")
    def choose_figures(self) -> None:
        """A dry run measures nothing."""
        self.perf_variables.clear()
        if not self.is_dry_run() and self.record["comparisons"]:
            ratio, own = self.contest["paired"], self.contest
            self.add_figures(
                {
                    "ratio": (own["ratio"], "x"),
                    "paired_ratio": (ratio["ratio"], "x"),
                    "paired_ratio_low": (ratio["low"], "x"),
                    "paired_ratio_high": (ratio["high"], "x"),
                    "engine_step": (own["ours_median_s"], "s"),
                    "peer_step": (own["peer_median_s"], "s"),
                }
            )
