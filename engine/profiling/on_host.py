"""Read a step on CPUs: operators of the rank's thread, gloo's events on its threads, and waits for them. No torch."""

from collections import defaultdict, deque
from dataclasses import replace

from engine.measure.intervals import Interval, covered, union
from engine.profiling.names import Region, kind_and_lane
from engine.profiling.ran import Ran, RanCollective, Sums
from engine.profiling.trace import Event, Step, innermost

GLOO = {
    "all_gather": "gloo:all_gather",
    "all_reduce": "gloo:all_reduce",
    "max_reduce": "gloo:all_reduce",
    "reduce_scatter": "gloo:all_to_all",
}
"""gloo carries out these kinds of collectives so (engine/comm/gloo.py). The others don't say when they end."""
COPIES = ("aten::copy_", "aten::_foreach_copy_")
NO_IDLE = (
    "A trace of CPUs can't tell idle from Python: what is outside operators is the interpreter's own time, autograd's "
    "between two operators, and other processes' turns on the core."
)
BY_RUN = (
    "Of collectives through memory that ranks share a trace has no events: when they began and ended is what the run's "
    "own clock says, so what of them was hidden can't be compared."
)
LOST = "The trace lacks events of {} collectives, though it has {}: it is not whole."


def ran(step: Step) -> Ran:
    """Find what ran in the step."""
    region = step.region
    operators = [event for event in step.of("cpu_op") if event.row == region.row]
    waits = dict(step.regions(Region.WAIT))
    standing = union((event.start, event.end) for event in waits.values())
    work: list[Interval] = []
    copies: list[Interval] = []
    operations, layers = Sums(), Sums()
    for operator in operators:
        operations.calls[operator.name] += 1
    for start, end, event in innermost(operators):
        (copies if event.name in COPIES else work).append((start, end))
        operations.seconds[event.name] += end - start - covered(start, end, standing)
    for start, end, event in innermost([event for _, event in step.regions(Region.LAYER, Region.BACKWARD)]):
        layers.seconds[event.name] += end - start - covered(start, end, standing)
    collectives, by_run = _collectives(step, waits)
    in_memory = step.about.lanes_in_memory
    if in_memory is None:  # as in older files: those that gloo tells nothing of
        in_memory = tuple({one.lane for one in by_run} - {f.lane for f in collectives if f not in by_run})
    untraced = {one for one in by_run if one.lane in in_memory}
    noted = _noted(step)
    unlike = abs(len(noted) - len(collectives)) if noted else 0
    lost = max(unlike, len(by_run) - len(untraced))
    notes = [NO_IDLE, *[LOST.format(lost, len(collectives))] * bool(lost), *[BY_RUN] * bool(untraced)]
    return Ran(
        region.start,
        region.end,
        collectives,
        work,
        copies,
        operations,
        layers,
        notes,
        _as_noted(step, collectives),
        lost,
        frozenset(one.axis for one in untraced),
    )


def _as_noted(step: Step, collectives: list[RanCollective]) -> list[RanCollective]:
    """Give the collectives with the ends that the run noted itself, which are in the trace too."""
    own = _noted(step)
    if len(own) != len(collectives):
        return []
    return [replace(f, done=min(max(noted.end, f.done), f.resumed)) for f, noted in zip(collectives, own, strict=True)]


def _noted(step: Step) -> list[Event]:
    """Give the collectives as the run noted them itself, in the order of their issue."""
    return sorted(step.of("collective"), key=lambda event: float(event.args["issued_us"]))


def _collectives(step: Step, waits: dict[str, Event]) -> tuple[list[RanCollective], list[RanCollective]]:
    """Find the collectives as the recorder has them: from when each was issued, or the one before it on its lane ended,
    to gloo's end of it.

    gloo's events don't say whose they are: of each sort the first that begins after an issue is taken to be its. One
    that gloo has no event of began and ended when the run noted it: of those that gloo would tell of, also which these
    are.
    """
    carried: dict[str, deque[Event]] = defaultdict(deque)
    for event in step.of("user_annotation"):
        carried[event.name].append(event)
    collectives, by_run, lane_free = list[RanCollective](), list[RanCollective](), dict[str, float]()
    issues, noted = list(step.regions(Region.ISSUE)), _noted(step)
    own = noted if len(noted) == len(issues) else [step.region] * len(issues)
    for (what, issue), of_run in zip(issues, own, strict=True):
        kind, lane = kind_and_lane(what)
        left = carried[GLOO.get(kind, "")]
        while left and left[0].start < issue.start:
            left.popleft()
        wait = waits.get(what)
        waited, resumed = (wait.start, wait.end) if wait is not None else (step.region.end, step.region.end)
        traced = bool(left) and left[0].start <= resumed and lane not in (step.about.lanes_in_memory or ())
        gloos = left.popleft() if traced else None
        done = min((gloos or of_run).end, resumed)
        start = min(done, max(issue.start if gloos else of_run.start, lane_free.get(lane, issue.start)))
        lane_free[lane] = done
        collectives.append(RanCollective(what, start, done, waited, resumed))
        if kind in GLOO and gloos is None:
            by_run.append(collectives[-1])
    return collectives, by_run
