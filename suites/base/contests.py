"""Contests of a series with peers, by `engine bench peers`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import reframe as rfm
from reframe.core.builtins import variable
from reframe.core.exceptions import SanityError

from engine.batch import Batch
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL
from engine.peers.comparison import Case, Comparison, PeerTraining
from engine.peers.layout import Layout, PeerLayout
from engine.peers.layout_choice import LayoutChoice, choose_micro_batch, layout_choices
from engine.peers.memory import UNFIT, Room
from engine.peers.registry import ALONE, COMPARISONS
from engine.planning.rank import Workload
from suites.base.figures import Figures
from suites.base.series import Point, points
from systems import System


class PeerComparison(rfm.RegressionTestPlugin):
    """An EngineTest whose figures are the ratio of the engine's step time by the peer's, and both times."""

    record: dict[str, Any]
    steps_per_round = variable(int, value=2)

    def judge(self) -> None:
        """Check the comparison, whose losses the engine found equal before it timed them. Raises SanityError."""
        check_one_comparison(self.record)

    def figures(self) -> Figures:
        found: Figures = {}
        for contest in self.record["comparisons"]:
            pair = contest["paired"]
            found = {
                "ratio": (contest["ratio"], "x"),
                "paired_ratio": (pair["ratio"], "x"),
                "paired_ratio_low": (pair["low"], "x"),
                "paired_ratio_high": (pair["high"], "x"),
                "engine_step": (contest["ours_median_s"], "s"),
                "peer_step": (contest["peer_median_s"], "s"),
            }
        return found


def check_one_comparison(record: dict[str, Any]) -> None:
    """Raise SanityError unless `bench peers` held one contest, or says that it doesn't fit, which gives no figures."""
    reasons = [asked["missing"] for asked in record["contests"] if asked["missing"]]
    for reason in reasons:
        if UNFIT not in reason:
            raise SanityError(f"undecided: the contest was skipped, as {reason}")
    if len(record["comparisons"]) + len(reasons) != 1:
        raise SanityError(f"the result has {len(record['comparisons'])} contests instead of one")


@dataclass(frozen=True, slots=True)
class Match:
    """A point with a peer on one of its layouts.

    micro_batch: how many sequences a rank of the peer takes at once. fits: whether there is a job for it.
    """

    point: Point
    peer: str
    layout: PeerLayout
    micro_batch: int
    fits: bool

    def __str__(self) -> str:
        name = f"{self.point}-{self.peer}-{self.layout}"
        return f"{name}-of-{self.micro_batch}" if self.point.series.peer_micro_batches else name


def matches(system: System) -> Iterator[Match]:
    """Match every point with every peer that can train its network."""
    for point in points("baselines", system.name):
        per_node = system.node.devices.value if system.node.devices else point.devices
        for name in point.series.peers or sorted(set(COMPARISONS) - set(ALONE)):
            case = case_of(point, system)
            for found in _layouts(point, COMPARISONS[name], case, per_node, room(system)):
                contest = COMPARISONS[name].with_layout(found.layout, Grid.replicated(found.layout.size))
                together = case.checkpoint_group(contest.grid)
                if contest.lacking(case.model, recompute=together, widens=case.widens, precision=case.precision):
                    continue
                for micro_batch in _micro_batches(point, COMPARISONS[name], found) or [found.micro_batch]:
                    fits = found.lacking is None or point.series.known_to_fit
                    yield Match(point, name, found.layout, micro_batch, fits)


def _layouts(point: Point, comparison: Comparison, case: Case, per_node: int, machine: Room) -> Sequence[LayoutChoice]:
    """List the layouts of a peer: the series' own, or those that are worth a measurement. Raises UsageError where the
    series names one that the peer hasn't, or that doesn't divide the network and the batch.
    """
    ranks = point.series.layouts.get(comparison.name, {}).get(point.devices)
    if ranks is None:
        given = point.micro_batch if point.series.known_to_fit else None
        return layout_choices(comparison, case, point.devices, per_node, machine, given)
    layout = Layout(ranks.tensor, ranks.pipeline, ranks.data)
    layout.for_batch(Batch(point.sequences, ranks.micro_batch)).check(case.model, point.sequences)
    return [choose_micro_batch(comparison, case, layout, per_node, machine, ranks.micro_batch)]


def _micro_batches(point: Point, comparison: Comparison, found: LayoutChoice) -> list[int]:
    """List those of the series' micro-batches with which a pipeline works; none of what isn't a pipeline."""
    layout = found.layout
    if isinstance(layout, Grid) or layout.pipeline == 1:
        return []
    share = point.sequences // layout.data
    most = share // layout.pipeline if comparison.fills_stages else share
    return [size for size in point.series.peer_micro_batches if share % size == 0 and size <= most]


def case_of(point: Point, system: System) -> Case:
    """Make what both sides train; GPUs compute activations again, as published runs do."""
    series = point.series
    recomputes = system.device.kind == "cuda" and series.training.recomputed_together != 0
    training = PeerTraining(
        precision=series.precision,
        checkpoint_activations=recomputes,
        reduce_dtype="fp32" if series.training.reduce_dtype == "fp32" else "compute",
    )
    batch, network = Batch(point.sequences, point.micro_batch), lookup(point.model)
    if series.sequence is not None:
        network = replace(network, sequence=series.sequence)  # type: ignore[type-var]
    given = {"device": system.device.kind, "rounds": series.rounds, "despite_estimate": series.known_to_fit}
    return Case.of(training, network, batch, overlap=ALL, **given)


def room(system: System) -> Room:
    """Return the memory of a device and of a node."""
    device, node = system.device.memory_bytes, system.node.memory_bytes
    return Room(system.device.kind, device.value if device else None, node.value if node else None)


def our_micro_batch(case: Case, grid: Grid, room: Room) -> int | None:
    """Say how many sequences a rank of ours takes at once on a grid: the most that fits, or 1; None for its share. Of a
    published row it is the row's.
    """
    if case.despite_estimate:
        return case.batch.micro
    whole = Batch(case.batch.sequences)
    micro = Workload(replace(case, batch=whole), room.device_memory, room.device).choose_micro(grid)
    return None if micro == whole.per_rank(grid) else micro
