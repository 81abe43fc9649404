"""Read a step on a GPU: kernels and copies by stream, and what the computing stream waited for. No torch.

The recorder's events on the computing stream are found again from kernels: a wait begins when the stream has done all
that it was given before, and not before the host asks for it; it ends with the collective's last kernel. No GPU has run
this yet.
"""

from collections import defaultdict
from typing import Any

from engine.profiling.names import Region
from engine.profiling.ran import Ran, RanCollective, Sums
from engine.profiling.trace import Event, Piece, Step, TraceError, at, innermost

KERNEL = "kernel"
COPIES = ("gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
LOST = "The trace has no kernels of {} of {} collectives: they count as taking no time."


def ran(step: Step) -> Ran:
    """Find what ran in the step. Raises TraceError for a trace without kernels."""
    given = _given(step)
    if not given:
        raise TraceError(
            "The trace has no kernels with their launches, though it is of a GPU: the profiler had no access to it "
            "(another profiler, or the driver's restriction), or this PyTorch doesn't tell. Take it once more."
        )
    launched = _innermost_by_row(step, Region.LAUNCH)
    in_layers = _innermost_by_row(step, Region.LAYER, Region.BACKWARD)
    carried: dict[str, list[Event]] = defaultdict(list)
    own: list[tuple[Event, Event]] = []
    operations, layers = Sums(), Sums()
    for launch, event in given:
        operations.calls[event.name] += 1
        operations.seconds[event.name] += event.end - event.start
        collective = at(launched[launch.row], launch.start)
        if collective is not None:
            carried[collective.name].append(event)
            continue
        own.append((launch, event))
        layer = at(in_layers[launch.row], launch.start)
        if layer is not None:
            layers.seconds[layer.name] += event.end - event.start
    work = [(event.start, event.end) for _, event in own if event.category == KERNEL]
    copies = [(event.start, event.end) for _, event in own if event.category in COPIES]
    computing = _busiest(own)
    on_it = [(launch, event) for launch, event in given if event.row == computing]
    collectives, lost = _collectives(step, carried, on_it)
    notes = [LOST.format(lost, len(collectives))] * bool(lost)
    ends = [event.end for _, event in on_it] + [one.resumed for one in collectives]
    return Ran(step.region.start, max(ends), collectives, work, copies, operations, layers, notes, lost=lost)


def _given(step: Step) -> list[tuple[Event, Event]]:
    """Give what the host launched, in that order: the call that launched it, and what then ran, by stream."""
    launches = {event.args.get("correlation"): event for event in step.of(*LAUNCHES)}
    found = []
    for event in step.of(KERNEL, *COPIES):
        launch = launches.get(event.args.get("correlation"))
        if launch is not None:
            found.append((launch, event))
    return sorted(found, key=lambda pair: pair[0].start)


def _innermost_by_row(step: Step, *kinds: Region) -> dict[tuple[Any, Any], list[Piece]]:
    by_row: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for _, event in step.regions(*kinds):
        by_row[event.row].append(event)
    return defaultdict(list, {row: innermost(events) for row, events in by_row.items()})


def _busiest(own: list[tuple[Event, Event]]) -> tuple[Any, Any] | None:
    """Find the stream that computes: the one whose kernels take longest."""
    seconds: dict[tuple[Any, Any], float] = defaultdict(float)
    for _, event in own:
        seconds[event.row] += event.end - event.start
    return max(seconds, key=lambda row: seconds[row], default=None)


def _collectives(
    step: Step, carried: dict[str, list[Event]], on_it: list[tuple[Event, Event]]
) -> tuple[list[RanCollective], int]:
    """Find collectives by their kernels, and waits of the computing stream, on which on_it ran; count those without."""
    waits = sorted(step.regions(Region.WAIT), key=lambda wait: wait[1].start)
    collectives = []
    free, left, lost = step.region.start, 0, 0
    for what, wait in waits:
        while left < len(on_it) and on_it[left][0].start < wait.start:
            free = max(free, on_it[left][1].end)
            left += 1
        waited = max(free, wait.start)
        kernels = carried[Region.LAUNCH.of(what)]
        lost += not kernels
        begun = min((event.start for event in kernels), default=waited)
        done = max((event.end for event in kernels), default=waited)
        free = max(waited, done)
        collectives.append(RanCollective(what, begun, done, waited, free))
    return collectives, lost
