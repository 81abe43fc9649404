"""Trace file of a profile: what ran on which thread and stream, and what the run recorded. No torch."""

import gzip
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import UsageError
from engine.files import json_of
from engine.result.schema import ResultError, checked
from engine.result.schema.profile import KEY, Profiled, RecordedStep

LONGEST_US = 1e12
"""No step takes eleven days."""
HOW = "par4d train --profile DIR writes one"


class Region(StrEnum):
    """Kind of a region, with which its name begins, such as "wait/all_reduce x 7"."""

    STEP = "step"
    """Iteration."""
    PHASE = "phase"
    LAYER = "layer"
    """Forward of a layer, by its serial name."""
    BACKWARD = "backward"
    """Operations that give back a gradient to what the layer did in its forward."""
    ISSUE = "issue"
    """Moment of a collective's issue, named by its kind, its lane and its number in the step."""
    LAUNCH = "launch"
    """Launch of a collective's kernels on CUDA."""
    WAIT = "wait"
    """Wait for a collective."""

    def name_of(self, what: object) -> str:
        """Return the region's name."""
        return f"{self}/{what}"


def parse_region(name: str) -> tuple[Region, str] | None:
    """Read the region from its name; None for one of another program.

    >>> parse_region("phase/forward")
    (<Region.PHASE: 'phase'>, 'forward')
    """
    kind, slash, what = name.partition("/")
    return (Region(kind), what) if slash and kind in list(Region) else None


def name_collective(kind: str, lane: str, number: int) -> str:
    """Name a collective as its regions do."""
    return f"{kind} {lane} {number}"


def kind_and_lane(what: str) -> tuple[str, str]:
    """Read what name_collective() has written.

    >>> kind_and_lane("all_gather z gather 12")
    ('all_gather', 'z gather')
    """
    kind, _, rest = what.partition(" ")
    return kind, rest.rpartition(" ")[0]


class TraceError(UsageError):
    """File that is no profile of this program's, or not all of it."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that ran, in seconds of the trace's clock."""

    name: str
    category: str
    row: tuple[Any, Any]
    """Its thread, or device and stream."""
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """Events that began in one profiled iteration, in that order."""

    about: Profiled
    recorded: RecordedStep
    region: Event
    """From its begin to its end on the host."""
    events: tuple[Event, ...]

    def of(self, *categories: str) -> list[Event]:
        """List the events of these categories."""
        return [event for event in self.events if event.category in categories]

    def regions(self, *kinds: Region) -> Iterator[tuple[str, Event]]:
        """Yield the regions of these kinds on any thread, and what each is of."""
        for event in self.of("user_annotation"):
            found = parse_region(event.name)
            if found is not None and found[0] in kinds:
                yield found[1], event


def read(path: Path) -> tuple[ProfiledStep, ...]:
    """Read the profiled steps of the trace, in their order; there is at least one. Raises TraceError."""
    document = _trace(path)
    if KEY not in document:
        raise TraceError(f"{path} is a trace, but no profile of a Par4D run: {HOW}.")
    try:
        about = checked(Profiled, "profile", document[KEY], str(path))
    except ResultError as error:
        raise TraceError(str(error)) from None
    events = _intact(path, document["traceEvents"])
    if not about.steps:
        raise TraceError(f"{path} tells of no iteration: {HOW}.")
    return tuple(_step(path, about, recorded, events) for recorded in about.steps)


def read_events(path: Path) -> tuple[Event, ...]:
    """Read the events of any Chrome trace, as they begin. Raises TraceError."""
    return _intact(path, _trace(path)["traceEvents"])


def _step(path: Path, about: Profiled, recorded: RecordedStep, events: tuple[Event, ...]) -> ProfiledStep:
    name = Region.STEP.name_of(recorded.iteration)
    region = next((event for event in events if event.name == name), None)
    if region is None:
        raise TraceError(f"{path} has no events of iteration {recorded.iteration}: it is cut short. Take it once more.")
    first = bisect_left(events, region.start, key=lambda event: event.start)
    last = bisect_right(events, region.end, key=lambda event: event.start)
    return ProfiledStep(about, recorded, region, events[first:last])


def _trace(path: Path) -> dict[str, Any]:
    """Read a document that has a list of events. Raises TraceError."""
    try:
        content = path.read_bytes()
        document = json_of(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):
        raise TraceError(f"{path} is cut short or is not a trace: {HOW}.") from None
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror}.") from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{path} is not a Chrome trace: {HOW}.")
    return document


def _intact(path: Path, raw: list[dict[str, Any]]) -> tuple[Event, ...]:
    """List the events that last, as they begin. Raises TraceError."""
    try:
        return _events(raw)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TraceError(f"{path} is damaged: its events are not those of a Chrome trace. Take it once more.") from None


def _events(raw: list[dict[str, Any]]) -> tuple[Event, ...]:
    """List the events that last. Times are from the first: a float holds no year in ns."""
    lasting = sorted((event for event in raw if event["ph"] == "X" and "cat" in event), key=lambda e: float(e["ts"]))
    origin = float(lasting[0]["ts"]) if lasting else 0.0

    def read_event(event: dict[str, Any]) -> Event:
        start = float(event["ts"]) - origin
        took_us, row = float(event.get("dur", 0.0)), (event["pid"], event["tid"])
        if not (math.isfinite(start) and 0 <= took_us < LONGEST_US):
            raise ValueError(f"an event lasts {took_us} us from {start} us on")
        end = start + took_us
        args: dict[str, Any] = dict(event.get("args") or {})
        return Event(str(event["name"]), str(event["cat"]), row, 1e-6 * start, 1e-6 * end, args)

    return tuple(read_event(event) for event in lasting)


def place_of(path: Path, steps: Sequence[ProfiledStep], iteration: int | None) -> int:
    """Find the place of an iteration among these, the last unless one is named. Raises TraceError."""
    known = [step.recorded.iteration for step in steps]
    if iteration is None:
        return len(known) - 1
    if iteration not in known:
        raise TraceError(
            f"{path} has no iteration {iteration}, but {', '.join(map(str, known))}: choose --iteration among them."
        )
    return known.index(iteration)


class Piece(NamedTuple):
    """Stretch of a row's time with the event that is innermost in it."""

    start: float
    end: float
    event: Event


def innermost(events: Collection[Event]) -> list[Piece]:
    """Find what runs at each time of one row, whose events lie in one another."""
    pieces: list[Piece] = []
    stack: list[Event] = []
    now = 0.0

    def advance(until: float) -> None:
        nonlocal now
        if stack and until > now:
            pieces.append(Piece(now, until, stack[-1]))
        now = max(now, until)

    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        while stack and stack[-1].end <= event.start:
            advance(stack[-1].end)
            stack.pop()
        advance(event.start)
        stack.append(event)
    while stack:
        advance(stack[-1].end)
        stack.pop()
    return pieces


def at(pieces: list[Piece], moment: float) -> Event | None:
    """Find the event that is innermost at a moment; pieces ascend."""
    place = bisect_right(pieces, moment, key=lambda piece: piece.start) - 1
    return pieces[place].event if place >= 0 and moment < pieces[place].end else None
