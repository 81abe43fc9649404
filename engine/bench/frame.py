"""All benchmarks run so: ranks meet on their devices, are watched while they work, and write a result."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.bench.benchmark import Benchmark
from engine.bench.record import Begun
from engine.bench.world import LOST, Unmeasurable, World, first_line
from engine.comm.binding import exchange, warn
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device
from engine.comm.meeting import init_process_group
from engine.comm.transport import backend_of, listen
from engine.errors import UsageError
from engine.grid import Grid
from engine.result.schema import Result
from engine.timeouts import Timeouts
from engine.training.gathered import everyones
from engine.training.stall import watched


def run(
    benchmark: Benchmark, launch: Launch, *, device: str, timeouts: Timeouts, labels: dict[str, str], out: Path
) -> Result:
    """Measure and, on rank 0, write the result; one that has failed says why. Raises UsageError."""
    target = choose_device(device, launch.local_rank)
    benchmark.check(launch, target)
    begun = Begun(benchmark, launch, target, labels, out)
    heard = listen(backend_of(target), os.environ) if benchmark.between_ranks and launch.world_size > 1 else None
    found: dict[str, Any] = {}
    reason, everyone = None, None
    try:
        with _meeting(benchmark.laid_out(launch.world_size), launch, target, timeouts, begun) as world:
            try:
                benchmark.measure(world, found)
            except Unmeasurable as error:
                reason = f"{benchmark.unmeasured}: {error}."
            everyone = everyones(world.comm, heard)
    except UsageError as error:
        begun.end(str(error), None, found)
        raise
    except LOST as error:
        reason = f"{benchmark.lost}: {first_line(error)}."
    return begun.end(reason, everyone, found)


@contextmanager
def _meeting(grid: Grid, launch: Launch, device: torch.device, timeouts: Timeouts, begun: Begun) -> Iterator[World]:
    """Bring all ranks together until they have all left. Raises one of LOST where one has gone.

    A rank that stands still fails what has begun, and ends.
    """
    timeout = timedelta(seconds=timeouts.timeout_s)
    if launch.world_size > 1:
        begun.bindings = init_process_group(launch, device, timeout, meeting_s=timeouts.meeting_timeout_s)
    else:
        begun.bindings = exchange(launch, device, None, timeout)
    warn(begun.bindings)
    comm = Comm(grid, timeout=timeout, device=device)
    with watched(comm, timeouts.timeout_s, begun.fail):
        yield World(comm)
        comm.barrier()
    if launch.world_size > 1:
        dist.destroy_process_group()
