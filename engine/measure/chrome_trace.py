"""One step as a Chrome trace: open the file in chrome://tracing or ui.perfetto.dev."""

import json
from pathlib import Path

from engine.files import write_text
from engine.measure.recorder import COMPUTE, Span


def write(path: Path, spans: list[Span], *, rank: int, about: dict[str, object]) -> None:
    """Write the spans, one row a lane: compute on top, then the lanes of each axis. about: facts kept in the file."""
    lanes = sorted({span.lane for span in spans}, key=lambda lane: (lane != COMPUTE, lane))
    named = [
        {"ph": "M", "name": name, "pid": rank, "tid": row, "args": args}
        for row, lane in enumerate(lanes)
        for name, args in (("thread_name", {"name": lane}), ("thread_sort_index", {"sort_index": row}))
    ]
    # A wait follows the phase that it lies in: of two events that begin together the longer one has to come first.
    events = [
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "pid": rank,
            "tid": lanes.index(span.lane),
            "ts": 1e6 * span.start_s,
            "dur": 1e6 * (span.end_s - span.start_s),
            "args": {} if span.issued_s is None else {"issued_us": 1e6 * span.issued_s},
        }
        for span in sorted(spans, key=lambda span: (span.start_s, span.start_s - span.end_s))
    ]
    trace = {"traceEvents": named + events, "displayTimeUnit": "ms", "otherData": about}
    write_text(path, json.dumps(trace) + "\n")
