"""One rank of any job runs alone, to say what it sends in a training step."""

import time
from dataclasses import asdict, dataclass

import torch

from engine.footprint.fit import parameters_per_rank
from engine.grid import Grid
from engine.measure.memory import peak_bytes
from engine.simulator.events import Trace
from engine.tracing.step import trace
from engine.training_record import Training


@dataclass(frozen=True, slots=True)
class Sent:
    """Collectives of a step of one kind along one axis. bytes: of the rank's input buffers."""

    kind: str
    axis: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """Work of one rank in one step.

    step_bytes: the most that its tensors take, state_bytes of them from step to step. traced_s, peak_memory_bytes: what
    tracing took on this machine.
    """

    model: str
    grid: str
    rank: int
    coords: dict[str, int]
    parameters_per_rank: int
    micro_batches: int
    flops: int
    state_bytes: int
    step_bytes: int
    cached_blocks: int
    collectives: tuple[Sent, ...]
    traced_s: float
    peak_memory_bytes: int

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def dry_run(training: Training, grid: Grid, rank: int, *, device_memory: float | None = None) -> tuple[DryRun, Trace]:
    """Trace a step of one rank of the grid. Raises UsageError for a rank that the grid hasn't."""
    start = time.perf_counter()
    traced = trace(training, grid, rank, device_memory=device_memory)
    return DryRun(
        model=training.model.name,
        grid=str(grid),
        rank=rank,
        coords=asdict(grid.coords(rank)),
        parameters_per_rank=parameters_per_rank(training, grid),
        micro_batches=traced.micro_batches,
        flops=traced.flops,
        state_bytes=traced.state_bytes,
        step_bytes=traced.peak_bytes,
        cached_blocks=traced.cached_blocks,
        collectives=tuple(
            Sent(kind, axis, calls, num_bytes) for (kind, axis), (calls, num_bytes) in sorted(traced.sent().items())
        ),
        traced_s=time.perf_counter() - start,
        peak_memory_bytes=peak_bytes(torch.device("cpu"))[1],
    ), traced
