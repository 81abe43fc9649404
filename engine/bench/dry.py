"""One rank of any job, run alone: a whole training step of the real engine on the meta device.

Nothing is computed and nothing is sent, but every collective is issued as in the real job: torch's fake process group
needs no peers. Nothing in a step may depend on a value, so the host of a real run doesn't wait for its device either,
but once, at the end.
"""

import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.measure.memory import peak_bytes
from engine.measure.recorder import Recorder
from engine.training.plan import Plan
from engine.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Sent:
    """One kind of collective along one axis in a step: bytes of the rank's input buffers."""

    kind: str
    axis: str
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """What one rank does in one step, and what finding out took on this machine.

    build_s: until the model and its optimizer stood. step_s: of the dry step, of so many micro-batches.
    peak_memory_bytes: of this process, resident.
    """

    model: str
    grid: str
    rank: int
    coords: dict[str, int]
    parameters_per_rank: int
    micro_batches: int
    collectives: tuple[Sent, ...]
    build_s: float
    step_s: float
    peak_memory_bytes: int

    def as_json(self) -> dict[str, object]:
        """In JSON's types."""
        return asdict(self) | {"step_s_per_micro_batch": self.step_s / self.micro_batches}


def dry_run(plan: Plan, rank: int) -> DryRun:
    """Run one step of one rank of the plan. Raises UsageError for a rank that the grid hasn't."""
    grid = plan.grid
    if not 0 <= rank < grid.size:
        raise UsageError(f"Grid {grid} has ranks 0 to {grid.size - 1}, but --rank {rank} was given.")
    dist.init_process_group("fake", rank=rank, world_size=grid.size)
    try:
        start = time.perf_counter()
        recorder = Recorder()
        comm = Comm(grid, recorder=recorder, device="meta")
        trainer = Trainer(plan, comm, recorder)
        built = time.perf_counter()
        recorder.start_step("forward")
        trainer.launch_step()
        recorder.end_step()
        ended = time.perf_counter()
    finally:
        dist.destroy_process_group()
    return DryRun(
        model=plan.model.name,
        grid=str(grid),
        rank=rank,
        coords=asdict(comm.coords),
        parameters_per_rank=sum(parameter.numel() for parameter in trainer.model.parameters()),
        micro_batches=len(plan.config.batch.micro_batches(grid, comm.coords)),
        collectives=tuple(
            Sent(kind, axis, tally.calls, tally.num_bytes)
            for (kind, axis), tally in sorted(recorder.total.tallies.items())
        ),
        build_s=built - start,
        step_s=ended - built,
        peak_memory_bytes=peak_bytes(torch.device("cpu"))[1],
    )
