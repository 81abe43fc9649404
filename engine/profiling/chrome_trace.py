"""A step is written as a Chrome trace here: open the file in chrome://tracing or ui.perfetto.dev."""

import json
from pathlib import Path
from typing import Any

from engine.files import write_text
from engine.measure.recording import COMPUTE, TraceEvent


def write(path: Path, traced: list[TraceEvent], *, rank: int, about: dict[str, object]) -> None:
    """Write one row a lane: compute on top, then the lanes of each axis. about: facts kept in the file."""
    trace = {"traceEvents": rows(traced, process=rank), "displayTimeUnit": "ms", "otherData": about}
    write_text(path, json.dumps(trace) + "\n")


def rows(traced: list[TraceEvent], *, process: int | str, origin_us: float = 0.0) -> list[dict[str, Any]]:
    """Give the events as the format has them, in rows of one process; the step begins at origin_us."""
    lanes = sorted({event.lane for event in traced}, key=lambda lane: (lane != COMPUTE, lane))
    named = [
        {"ph": "M", "name": name, "pid": process, "tid": row, "args": args}
        for row, lane in enumerate(lanes)
        for name, args in (("thread_name", {"name": lane}), ("thread_sort_index", {"sort_index": row}))
    ]
    # A wait follows the phase that it lies in: of two events that begin together the longer one has to come first.
    events = [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.kind,
            "pid": process,
            "tid": lanes.index(event.lane),
            "ts": origin_us + 1e6 * event.start_s,
            "dur": 1e6 * (event.end_s - event.start_s),
            "args": {} if event.issued_s is None else {"issued_us": origin_us + 1e6 * event.issued_s},
        }
        for event in sorted(traced, key=lambda event: (event.start_s, event.start_s - event.end_s))
    ]
    return named + events
