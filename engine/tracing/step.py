"""The real engine's training step of one rank is traced, on the meta device over the fake back end.

Nothing is computed and nothing is sent, but the layers, the schedule and the funnel are those of a real job: a flag of
overlap changes the trace because the engine issues and waits at other times.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Literal

import torch

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.errors import UsageError
from engine.footprint.memory import cached_blocks
from engine.grid import CUTTING_STAGES, Grid
from engine.layers.compiled import traced
from engine.layers.loss import of_split_rows, of_whole_rows, to_gradient
from engine.overlap.flags import AUTO
from engine.overlap.tasks import OneByOne
from engine.simulator.events import Mark, Segment, Trace
from engine.tracing.watch import Log, Operators, TracingRecorder, fused_attention
from engine.training.optim import adamw
from engine.training.trainer import Trainer
from engine.training_record import Training

Compiled = Literal["nothing", "blocks", "all"]
"""Functions that are one kernel each, of those that GPUs compile; "blocks" leaves out the loss and the optimizer."""
AROUND_BLOCKS = frozenset(one.plain for one in (of_whole_rows, of_split_rows, to_gradient, adamw))
MOST_PASSES = 3
"""So many are traced at most: the first micro-batch, one that stands for those between, and the last."""


def trace(
    training: Training,
    grid: Grid,
    rank: int = 0,
    *,
    device_memory: float | None = None,
    compiled: Compiled = "nothing",
    one_by_one: bool = False,
) -> Trace:
    """Trace one rank's step as it is once the schedule has learnt its order. Raises UsageError for no such rank.

    device_memory: bytes, by which cache=auto is sized as in a real run; without it, it keeps nothing. compiled: which
    functions that GPUs compile are one kernel each, instead of the operators that processors run. one_by_one: whether
    each micro-batch goes through the rank's stage before the next, whatever the schedule; else all of them are traced.
    """
    if not 0 <= rank < grid.size:
        raise UsageError(f"Grid {grid} has ranks 0 to {grid.size - 1}, but --rank {rank} was given.")
    log = Log()
    operators = Operators(log)
    with fake_group(grid, rank), operators, fused_attention(log), _fusing(operators, compiled):
        comm = Comm(grid, recorder=TracingRecorder(log), device="meta")
        assert comm.recorder is not None
        data = training.model.task.data.synthetic()
        trainer, staged = Trainer(training, data, comm, comm.recorder), training.staged(grid)
        on_host = trainer.model.schedule.flat.elements.host
        log.freed((1 + len(trainer.optimizer.keeps.names)) * on_host.nbytes)
        log.peak = log.live
        alone = OneByOne(staged.schedule.chunks, staged.schedule.deferring)
        trainer.runner.schedule, trainer.training = alone, _of_few(training, grid, 1)
        trainer.launch_step()  # in which the order of gathers is learnt, and what stays from step to step is made
        state_bytes = log.live
        passes = training.passes(grid)
        _size_cache(trainer, device_memory, log.peak, training.under_way(grid, comm.coords[CUTTING_STAGES]))
        one_by_one = one_by_one or isinstance(staged.schedule, OneByOne)
        few = min(passes, MOST_PASSES) if one_by_one else passes
        trainer.training = _of_few(training, grid, few)
        if not one_by_one:
            known = staged.schedule.order(0, grid.stages, passes).known
            trainer.runner.schedule = staged.schedule if known else training.replayed(grid)
        log.peak = log.live
        segments = _segments(trainer, log, passes - few)
    return Trace(
        about={
            "model": training.model.options,
            "grid": str(grid),
            "rank": rank,
            "batch": asdict(training.batch),
            **training.options_on(grid),
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


def _fusing(operators: Operators, compiled: Compiled) -> AbstractContextManager[None]:
    """Have functions that GPUs compile run as one kernel each meanwhile."""

    def run(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        whole = compiled == "all" or function not in AROUND_BLOCKS
        return operators.one_kernel(function, *args, **given) if whole else function(*args, **given)

    return nullcontext() if compiled == "nothing" else traced(run)


def _segments(trainer: Trainer, log: Log, more: int) -> list[Segment]:
    """Trace a step. If more passes are to follow the second of three, cut it where the second and the third begin."""
    log.start()
    trainer.launch_step()
    whole = log.segment(1)
    if not more:
        return [whole]
    starts = [index for index, event in enumerate(whole.events) if event == Mark("forward")]
    starts = starts[:: trainer.model.cut.chunks]
    found = []
    for repeats, (low, high) in zip((1, 1 + more, 1), pairwise([0, *starts[1:], len(whole.events)]), strict=True):
        memory = [(index - low, size) for index, size in whole.memory[low:high]]
        found.append(Segment(repeats, whole.events[low:high], memory))
    return found


def _of_few(training: Training, grid: Grid, passes: int) -> Training:
    """Change a training to so many micro-batches a rank."""
    micro = training.batch.at_once(grid)
    return replace(training, batch=Batch(passes * micro * grid.batch_split, micro))


def _size_cache(trainer: Trainer, device_memory: float | None, peak: int, under_way: float) -> None:
    """Settle cache="auto" by the memory that a step left, as Trainer does."""
    overlap = trainer.training.overlap
    if overlap.cache != AUTO or not trainer.model.can_cache:
        return
    model = trainer.model
    block_bytes = [under_way * one for one in model.block_bytes()]
    model.cache_blocks(cached_blocks(overlap, device_memory, peak, block_bytes))
