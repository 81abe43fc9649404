"""Whether a grid fits a model, a batch, nodes and, by a coarse count, memory; and which schedules do. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.memory import Footprint, Needs, usable
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.optimizer_state import ADAMW
from engine.pipeline.registry import PipelineOptions, ScheduleChoice, candidates
from engine.pipeline.staged import fastest, times_by_flops
from engine.training_record import Training

MOST_PASSES = 2.0
"""Most passes that are kept however much memory is free, as a multiple of 1F1B's."""


def check_grid(model: Architecture, grid: Grid, batch: Batch) -> None:
    """Raise UsageError, naming the numbers and what would fit, unless the grid divides network and batch."""
    batch.check(grid)
    model.check(grid)


def fits_nodes(grid: Grid, devices_per_node: int) -> bool:
    """Say whether each plane of x and y fills whole nodes, or each node whole planes, so that no plane lies across the
    border of two nodes that it doesn't fill. Ranks are numbered x first, and node by node.
    """
    plane = grid.plane
    return grid.size <= devices_per_node or devices_per_node % plane == 0 or plane % devices_per_node == 0


def parameters_per_rank(training: Training, grid: Grid) -> int:
    """Count the elements that each rank stores, of a pipeline a rank of the stage that stores most."""
    network, cut = training.model.network(), training.cut(grid)
    stages = (cut.held(network, stage) for stage in range(grid.stages))
    return max(sum(placement.local_numel(grid) for placement in stage) for stage in stages)


def check_memory(training: Training, grid: Grid, device_memory: float, device: str = "cuda") -> None:
    """Raise UsageError if a step needs more than a device's whole memory (bytes) for sure. Choosing a grid leaves some
    of it free (memory.usable); one that a user names may fill it.
    """
    footprint = Footprint(training, device)
    if footprint.exceeds(grid, device_memory):
        raise lacking_memory(training, grid, footprint.on(grid), device_memory)


def lacking_memory(training: Training, grid: Grid, needs: Needs, device_memory: float) -> UsageError:
    """Make the error of a step that needs more than a device has."""
    return UsageError(
        f"On grid {grid} a step of {training.model.name} needs {needs.total / 1e9:.3g} GB on each rank, "
        f"{needs.state / 1e9:.3g} GB of it for weights, gradients and optimizer, but a device has "
        f"{device_memory / 1e9:.3g} GB: use more ranks on x, y or z, a smaller --micro-batch, "
        "--checkpoint-activations or, in bf16 or fp16, --offload."
    )


def offloaded_bytes(training: Training, grid: Grid) -> int:
    """Count the bytes that each rank's offload keeps on its host: weights of matrices in fp32, and their moments."""
    if not training.offload:
        return 0
    network, cut = training.model.network(), training.cut(grid)
    stages = (cut.held(network, stage) for stage in range(grid.stages))
    most = max(sum(placed.local_numel(grid) for placed in stage if placed.sharded) for stage in stages)
    return (1 + len(ADAMW.names)) * training.master * most


def check_host_memory(training: Training, grid: Grid, host_memory: float, ranks: int) -> None:
    """Raise UsageError if what the ranks of a node offload is more than its memory (bytes)."""
    needed = ranks * offloaded_bytes(training, grid)
    if needed > host_memory:
        raise UsageError(
            f"On grid {grid} --offload keeps {needed / 1e9:.3g} GB of {training.model.name}'s weights and moments in "
            f"the memory of a node with {ranks} rank{'s' if ranks > 1 else ''}, which has {host_memory / 1e9:.3g} GB: "
            "use more ranks on x, y or z, or fewer on a node, or leave --offload out."
        )


def list_schedules(
    training: Training, grid: Grid, device_memory: float | None, device: str = "cuda"
) -> Mapping[ScheduleChoice, Needs]:
    """List the schedules that AUTO chooses from on a grid of several stages, with what a rank needs.

    All whose step leaves of a device's memory what is to be free, up to MOST_PASSES, and with stages as a person has
    cut them none that cuts these, too. Where there is none, or memory is unknown, those that keep no more passes than
    1F1B does, if they can be at all within the whole memory. All ranks come to the same, as no device is asked.
    """
    stages, passes, layers = grid.stages, training.passes(grid), training.model.layers
    needs = {
        choice: Footprint(with_schedule(training, choice), device).on(grid)
        for choice, schedule in candidates(stages, passes, layers, MOST_PASSES if device_memory else 1.0).items()
        if schedule.chunks == 1 or training.pipeline.stages is None
    }
    few = {choice: needs[choice] for choice in candidates(stages, passes, layers) if choice in needs}
    for choices, most in ((needs, usable(device_memory)), (few, device_memory or inf)):
        if fitting := {choice: needed for choice, needed in choices.items() if needed.total <= most}:
            return fitting
    return few


def choose_schedule(training: Training, grid: Grid, device_memory: float, device: str = "cuda") -> Training:
    """Return the training with the fastest schedule by flops that a device's memory allows, where it is AUTO."""
    if grid.stages == 1 or training.pipeline != PipelineOptions(stages=training.pipeline.stages):
        return training
    choices = list_schedules(training, grid, device_memory, device)
    return with_schedule(training, fastest_by_flops(training, grid, choices))


def fastest_by_flops(training: Training, grid: Grid, choices: Iterable[ScheduleChoice]) -> ScheduleChoice:
    """Find the fastest of these by the flops of each stage."""
    model, stages, passes = training.model, grid.stages, training.passes(grid)
    times = partial(times_by_flops, model=model, stages=stages, recomputed=training.recomputed_blocks)
    return fastest({choice: choice.make() for choice in choices}, stages, passes, times)[0]


def with_schedule(training: Training, choice: ScheduleChoice) -> Training:
    """Return the same training by a schedule."""
    return replace(training, pipeline=choice.options(training.pipeline.stages))
