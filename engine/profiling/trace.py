"""Read a profile's trace file: what ran on which thread and stream, and what the run recorded. No torch."""

import gzip
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import UsageError
from engine.files import json_of
from engine.profiling.names import Region, parsed
from engine.result.schema import ResultError, checked
from engine.result.schema.profile import KEY, Profiled, RecordedStep

MICRO = 1e-6
LONGEST_US = 1e12
"""No step takes eleven days."""
HOW = "par4d train --profile DIR writes one"


class TraceError(UsageError):
    """The file, which the message names, is no profile of this program's, or not all of it."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event is something that ran, in seconds of the trace's clock. row: its thread, or device and stream."""

    name: str
    category: str
    row: tuple[Any, Any]
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A step has what began in one profiled iteration, in that order. region: from its begin to its end on the host."""

    about: Profiled
    recorded: RecordedStep
    region: Event
    events: tuple[Event, ...]

    def of(self, *categories: str) -> list[Event]:
        """Give the events of these categories."""
        return [event for event in self.events if event.category in categories]

    def regions(self, *kinds: Region) -> Iterator[tuple[str, Event]]:
        """Give the regions of these kinds on any thread, and what each is of."""
        for event in self.of("user_annotation"):
            found = parsed(event.name)
            if found is not None and found[0] in kinds:
                yield found[1], event


def read(path: Path) -> tuple[Step, ...]:
    """Read the profiled steps of the trace, in their order; there is at least one. Raises TraceError."""
    document = _document(path)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{path} is not a Chrome trace: {HOW}.")
    if KEY not in document:
        raise TraceError(f"{path} is a trace, but no profile of a Par4D run: {HOW}.")
    try:
        about = checked(Profiled, "profile", document[KEY], str(path))
        events = _events(document["traceEvents"])
    except ResultError as error:
        raise TraceError(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TraceError(f"{path} is damaged: its events are not those of a Chrome trace. Take it once more.") from None
    if not about.steps:
        raise TraceError(f"{path} tells of no iteration: {HOW}.")
    return tuple(_step(path, about, recorded, events) for recorded in about.steps)


def _step(path: Path, about: Profiled, recorded: RecordedStep, events: tuple[Event, ...]) -> Step:
    name = Region.STEP.of(recorded.iteration)
    region = next((event for event in events if event.name == name), None)
    if region is None:
        raise TraceError(f"{path} has no events of iteration {recorded.iteration}: it is cut short. Take it once more.")
    first = bisect_left(events, region.start, key=lambda event: event.start)
    last = bisect_right(events, region.end, key=lambda event: event.start)
    return Step(about, recorded, region, events[first:last])


def _document(path: Path) -> object:
    try:
        content = path.read_bytes()
        return json_of(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError):
        raise TraceError(f"{path} is cut short or is not a trace: {HOW}.") from None
    except OSError as error:
        raise TraceError(f"{path} can't be read: {error.strerror}.") from None


def _events(raw: list[dict[str, Any]]) -> tuple[Event, ...]:
    """Give the events that last, as they begin. Times are from the first: a float holds no year in ns."""
    lasting = sorted((event for event in raw if event["ph"] == "X" and "cat" in event), key=lambda e: float(e["ts"]))
    origin = float(lasting[0]["ts"]) if lasting else 0.0

    def lasted(event: dict[str, Any]) -> Event:
        start = float(event["ts"]) - origin
        took_us, row = float(event.get("dur", 0.0)), (event["pid"], event["tid"])
        if not (math.isfinite(start) and 0 <= took_us < LONGEST_US):
            raise ValueError(f"an event lasts {took_us} us from {start} us on")
        end = start + took_us
        args: dict[str, Any] = dict(event.get("args") or {})
        return Event(str(event["name"]), str(event["cat"]), row, start * MICRO, end * MICRO, args)

    return tuple(lasted(event) for event in lasting)


def place_of(path: Path, steps: Sequence[Step], iteration: int | None) -> int:
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
    """A piece is a stretch of a row's time with the event that is innermost in it."""

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
