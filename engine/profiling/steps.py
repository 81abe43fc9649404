"""Further steps of a trainer, whoever wrote it, under torch.profiler, for their parts."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from engine.errors import first_line
from engine.profiling.parts import PARTED, part_file
from engine.profiling.trace import TraceError
from engine.result.schema.profile import StepParts

NOT_WRITTEN = "torch.profiler could not write the trace"


def part_steps(
    take: Callable[[], object],
    synchronise: Callable[[], object],
    steps: int,
    device: torch.device,
    *,
    read: bool = True,
) -> StepParts | None:
    """Take steps of this rank under the profiler, and part them; None unless they are to be read. Raises TraceError.

    One more goes before them, into which falls what the profiler does at first, and what ranks then wait for each
    other. synchronise: waits until the device has done all of a step.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with profile(activities=activities) as profiler:
        take()
        synchronise()
        for _ in range(steps):
            with record_function(PARTED):
                take()
                synchronise()
    if not read:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        try:
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise TraceError(f"{NOT_WRITTEN}: {first_line(error)}") from None
        return part_file(path, device.type)
