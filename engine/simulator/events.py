"""A trace lists what one rank does in one step, in order, and is kept as a versioned JSON file. No torch in it.

It holds no times: simulate.py plays it on a machine. Micro-batches between the first and the last are alike, so that a
step is three segments at most, the middle one repeated.
"""

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engine.errors import UsageError
from engine.files import json_of, write_text
from engine.result.schema import ResultError, checked
from engine.schema import Record

SCHEMA: Literal["par4d.trace"] = "par4d.trace"
VERSION: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Product of [m, k] and [k, n]."""

    m: int
    n: int
    k: int
    mode: str
    """How both lie in memory (layers/matmul.py)."""
    element: int
    """Bytes of one."""

    @property
    def flops(self) -> int:
        """Count a multiplication and an addition as two: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def num_bytes(self) -> int:
        """Count both factors and the product, each once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.element


@dataclass(frozen=True, slots=True)
class Convolution:
    """Product of an implicit GEMM, [m, k] by [k, n], where each pixel of an image stands in as many rows as windows
    see it.
    """

    m: int
    n: int
    k: int
    mode: str
    num_bytes: int
    """Bytes of the images that it reads and writes, and of the weight, each once."""

    @property
    def flops(self) -> int:
        """Count a multiplication and an addition as two: 2 m n k."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused kernel. heads: of all sequences; flops count both halves of the scores, as the papers do."""

    heads: int
    sequence: int
    head_size: int
    element: int
    backward: bool

    @property
    def flops(self) -> int:
        """Count two products of s x s x d forward, four backward, and nothing that a kernel recomputes."""
        return (8 if self.backward else 4) * self.heads * self.sequence**2 * self.head_size

    @property
    def num_bytes(self) -> int:
        """Count query, key, value and output, and backward their gradients, too."""
        return (8 if self.backward else 4) * self.heads * self.sequence * self.head_size * self.element


@dataclass(frozen=True, slots=True)
class Sweep:
    """Elementwise kernels and sums: their number, and the bytes that they read and write."""

    num_bytes: int
    kernels: int


@dataclass(frozen=True, slots=True)
class Issue:
    """A collective is issued. num_bytes: of the rank's input buffer. lane: the queue of its axis in which it waits."""

    kind: str
    axis: str
    lane: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The rank needs the result of the collective that was issued so many issues back; 1 is the last one.

    blocking: nothing is left that it could do without it.
    """

    back: int
    blocking: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase of the step begins."""

    phase: str


Compute = MatrixProduct | Convolution | Attention | Sweep
Event = Compute | Issue | Wait | Mark
KINDS: dict[str, type[Event]] = {
    "product": MatrixProduct,
    "convolution": Convolution,
    "attention": Attention,
    "sweep": Sweep,
    "issue": Issue,
    "wait": Wait,
    "mark": Mark,
}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(slots=True)
class Segment:
    """Its events run so many times. memory: (index of an event, the most bytes that lived since the one before it)."""

    repeats: int
    events: list[Event]
    memory: list[tuple[int, int]]


@dataclass(slots=True)
class Trace:
    """One step of one rank."""

    about: dict[str, Any]
    """Model, grid, rank and the options that decide it."""
    layers: int
    """Blocks that were run, all or few that stand for all."""
    micro_batches: int
    state_bytes: int
    """Bytes of parameters, gradients and moments."""
    peak_bytes: int
    """Most that tensors take in the step, the state included."""
    cached_blocks: int
    """As cache=N or auto came out."""
    segments: list[Segment]

    def __iter__(self) -> Iterator[Event]:
        """Yield every event of the step, those of repeated segments each time."""
        for segment in self.segments:
            for _ in range(segment.repeats):
                yield from segment.events

    @property
    def flops(self) -> int:
        """Count those of products, convolutions and attention in the whole step."""
        return sum(
            segment.repeats * event.flops
            for segment in self.segments
            for event in segment.events
            if isinstance(event, MatrixProduct | Convolution | Attention)
        )

    def sent(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Count calls and bytes of the step by (kind, axis)."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for segment in self.segments:
            for event in segment.events:
                if isinstance(event, Issue):
                    calls, num_bytes = found.get((event.kind, event.axis), (0, 0))
                    more = segment.repeats
                    found[event.kind, event.axis] = calls + more, num_bytes + more * event.num_bytes
        return found


class _SegmentRecord(Record):
    repeats: int = Field(ge=1)
    events: list[tuple[str | int | bool, ...]]
    memory: list[tuple[int, int]]


class TraceRecord(Record):
    """Trace in a file: an event is a list, its kind first and then its fields in their order."""

    schema_: Literal["par4d.trace"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1] = VERSION
    about: dict[str, Any]
    layers: int
    micro_batches: int
    state_bytes: int
    peak_bytes: int
    cached_blocks: int
    segments: list[_SegmentRecord]


def write(trace: Trace, path: Path) -> None:
    """Write a trace as JSON, so that a reader finds all of it or nothing."""
    write_text(path, json.dumps(as_json(trace), separators=(",", ":")) + "\n")


def as_json(trace: Trace) -> dict[str, Any]:
    segments = [
        {
            "repeats": segment.repeats,
            "events": [[NAMES[type(event)], *astuple(event)] for event in segment.events],
            "memory": [list(point) for point in segment.memory],
        }
        for segment in trace.segments
    ]
    told = {name: getattr(trace, name) for name in TraceRecord.model_fields if hasattr(trace, name)}
    return {"schema": SCHEMA, "version": VERSION, **told, "segments": segments}


def read(path: Path) -> Trace:
    """Read a trace. Raises UsageError if it is cut short, newer than this code or no trace."""
    try:
        data = json_of(path.read_text())
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{path} is cut short or is not JSON: write it again by par4d bench dry --trace.") from None
    return from_json(data, str(path))


def from_json(data: object, where: str) -> Trace:
    """Check a decoded document; where names it in errors. Raises ResultError, which is a UsageError."""
    record = checked(TraceRecord, "trace", data, where)
    segments = []
    for segment in record.segments:
        try:
            events: list[Event] = [KINDS[str(kind)](*fields) for kind, *fields in segment.events]  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            raise ResultError(f"{where} is not a valid trace: it holds an event that no trace has.") from None
        segments.append(Segment(segment.repeats, events, list(segment.memory)))
    told = {name: getattr(record, name) for name in Trace.__dataclass_fields__ if name != "segments"}
    return Trace(**told, segments=segments)
