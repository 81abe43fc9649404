"""The real engine's training step of one rank, run on the meta device over the fake back end, as a trace.

Nothing is computed and nothing is sent: the layers, the schedule and the funnel are those of a real job, so that a flag
of overlap changes the trace because the engine issues and waits otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise

import torch
import torch.distributed as dist

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.footprint.memory import cached_blocks
from engine.grid import Grid
from engine.layers.compiled import traced
from engine.overlap.flags import AUTO
from engine.simulator.events import Mark, Segment, Trace
from engine.tracing.watch import Log, Operators, TracingRecorder, fused_attention
from engine.training.trainer import Trainer
from engine.training_record import Training

MOST_PASSES = 3
"""The first micro-batch, one that stands for those between, and the last."""


@contextmanager
def _rank_alone(grid: Grid, rank: int) -> Iterator[None]:
    if not 0 <= rank < grid.size:
        raise UsageError(f"Grid {grid} has ranks 0 to {grid.size - 1}, but --rank {rank} was given.")
    dist.init_process_group("fake", rank=rank, world_size=grid.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def trace(
    training: Training, grid: Grid, rank: int = 0, *, device_memory: float | None = None, compiled: bool = False
) -> Trace:
    """Trace one rank's step as it is once the schedule has learnt its order. Raises UsageError for no such rank.

    device_memory: bytes, by which cache=auto is sized as a real run would; without it, it keeps nothing. compiled: what
    GPUs compile is one kernel for each function, not what processors run.
    """
    log = Log()
    operators = Operators(log)
    way = traced(operators.one_kernel) if compiled else nullcontext()
    with _rank_alone(grid, rank), operators, fused_attention(log), way:
        comm = Comm(grid, recorder=TracingRecorder(log), device="meta")
        assert comm.recorder is not None
        trainer = Trainer(_of_few(training, grid, 1), training.model.task.data.synthetic(), comm, comm.recorder)
        trainer.launch_step()  # in which the order of gathers is learnt, and what stays from step to step is made
        state_bytes = log.live
        _size_cache(trainer, device_memory, log.peak)
        passes = training.batch.per_rank(grid) // training.batch.at_once(grid)
        trainer.training = _of_few(training, grid, min(passes, MOST_PASSES))
        log.peak = log.live
        segments = _segments(trainer, log, passes)
    return Trace(
        about={
            "model": training.model.options,
            "grid": str(grid),
            "rank": rank,
            "batch": asdict(training.batch),
            "precision": training.precision,
            "reduce_dtype": training.reduce_dtypes(grid),
            "checkpoint_activations": training.checkpoint_activations,
            "overlap": str(training.overlap),
            "torch": torch.__version__,
        },
        layers=training.model.layers,
        micro_batches=passes,
        state_bytes=state_bytes,
        peak_bytes=log.peak,
        cached_blocks=trainer.model.cached_blocks,
        segments=segments,
    )


def _segments(trainer: Trainer, log: Log, passes: int) -> list[Segment]:
    """The step, cut where a micro-batch begins."""
    log.start()
    trainer.launch_step()
    whole = log.segment(1)
    starts = [index for index, event in enumerate(whole.events) if event == Mark("forward")]
    if passes <= MOST_PASSES:
        return [whole]
    cuts = [0, starts[1], starts[2], len(whole.events)]
    found = []
    for repeats, (low, high) in zip((1, passes - 2, 1), pairwise(cuts), strict=True):
        memory = [(index - low, size) for index, size in whole.memory[low:high]]
        found.append(Segment(repeats, whole.events[low:high], memory))
    return found


def _of_few(training: Training, grid: Grid, passes: int) -> Training:
    """The same training with a batch of so many micro-batches a rank."""
    micro = training.batch.at_once(grid)
    return replace(training, batch=Batch(passes * micro * grid.batch_split, micro))


def _size_cache(trainer: Trainer, device_memory: float | None, peak: int) -> None:
    """As Trainer does once a step has shown what memory is left."""
    overlap = trainer.training.overlap
    if overlap.cache != AUTO or not trainer.model.can_cache:
        return
    model, layers = trainer.model, trainer.training.model.layers
    model.cache_blocks(cached_blocks(overlap, device_memory, peak, model.block_bytes(), layers))
