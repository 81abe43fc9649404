"""Parts of a profiled step of anybody's trainer: work, communication beside work and without it, and neither. No torch.

Other libraries name no waits, so that both sides of a contest are parted by what every trace of torch.profiler has. On
a GPU communication is the kernels of NCCL, RCCL or MSCCL, in which a device waits for slower ones, too, and work is all
other kernels and copies. On processors communication is gloo's events on any thread and the rank's calls that wait, and
work is PyTorch's operators but for calls of collectives. What no operator does, such as Python between two of them, or
an optimizer in a library's own C++, is neither; with a collective in flight it counts as exposed, as a wait in Python
looks the same. On processors exposed communication is thus what it is at most: 0.1 s of a step of 3 s more than by
our own record, on two busy cores. A receive is in flight from when it is posted. No GPU has run this yet.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.measure.intervals import Interval, common, length, union
from engine.profiling.ran import DEVICE_COPIES, KERNEL
from engine.profiling.trace import Event, TraceError, read_events
from engine.result.schema.profile import StepParts

PARTED = "step of a contest"
"""Name of the region of a step."""
COLLECTIVE_KERNEL = re.compile(r"\b(nccl|rccl|msccl)", re.IGNORECASE)
GLOO_EVENT = "gloo:"
CALLS = ("c10d::", "_c10d_functional::", "c10d_functional::")
"""Beginnings of names of operators that issue a collective or wait for one."""
WAIT = "::wait_tensor"
"""End of the names of those that wait."""
NO_OPERATORS = ("autograd::", "torch::autograd::")
"""Beginnings of names that wrap operators, and Python's own waits."""
NO_KERNELS = (
    "the trace has no kernels, though it is of a GPU: the profiler had no access to it (another profiler, or the "
    "driver's restriction)"
)


def part_file(path: Path, device: str) -> StepParts:
    """Part the steps of a Chrome trace. Raises TraceError."""
    return part(read_events(path), device)


def part(events: Sequence[Event], device: str) -> StepParts:
    """Part the steps of a trace, as their mean. device: cpu or cuda. Raises TraceError."""
    steps = [event for event in events if event.name == PARTED and event.category == "user_annotation"]
    if not steps:
        raise TraceError("the trace has no events of a step: it is cut short")
    on_device = device == "cuda"
    if on_device and not any(event.category == KERNEL for event in events):
        raise TraceError(NO_KERNELS)
    work, communication = _on_device(events) if on_device else _on_host(events, steps[0].row)
    during = union((step.start, step.end) for step in steps)
    work, communication = common(work, during), common(communication, during)
    step_s, work_s, hidden_s = length(during), length(work), length(common(work, communication))
    exposed_s = max(0.0, length(communication) - hidden_s)
    number = len(steps)
    return StepParts(
        steps=number,
        step_s=step_s / number,
        compute_s=max(0.0, step_s - exposed_s) / number,
        work_s=work_s / number,
        rest_s=(step_s - exposed_s - work_s) / number,
        hidden_s=hidden_s / number,
        exposed_s=exposed_s / number,
    )


Both = tuple[tuple[Interval, ...], tuple[Interval, ...]]
"""Work and communication."""


def _on_device(events: Iterable[Event]) -> Both:
    work, communication = list[Event](), list[Event]()
    for event in events:
        if event.category == KERNEL and COLLECTIVE_KERNEL.search(event.name):
            communication.append(event)
        elif event.category in (KERNEL, *DEVICE_COPIES):
            work.append(event)
    return _times(work), _times(communication)


def _on_host(events: Iterable[Event], row: tuple[object, object]) -> Both:
    """Find them on processors. row: the rank's own thread."""
    operators, calls, collectives = list[Event](), list[Event](), list[Event]()
    for event in events:
        if event.category == "user_annotation" and event.name.startswith(GLOO_EVENT):
            collectives.append(event)
        elif event.category == "cpu_op" and event.row == row:
            if event.name.startswith(CALLS):
                calls.append(event)
            elif "::" in event.name and not event.name.startswith(NO_OPERATORS):
                operators.append(event)
    collectives += [call for call in calls if call.name.endswith(WAIT)]
    return _without(_times(operators), _times(calls)), _times(collectives)


def _times(events: Iterable[Event]) -> tuple[Interval, ...]:
    return union((event.start, event.end) for event in events)


def _without(intervals: Sequence[Interval], others: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the times of the intervals that are in none of the others; each is ascending and apart."""
    ends = [intervals[0][0], *(end for other in others for end in other), intervals[-1][1]] if intervals else []
    gaps = [(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True) if start < end]
    return common(intervals, gaps)
