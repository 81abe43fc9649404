"""Does a grid fit a model, a batch, a device's memory and nodes? No torch in it."""

from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.optimizer_state import ADAMW
from engine.training_record import Training


def parameters_per_rank(training: Training, grid: Grid) -> int:
    """Count the elements that each rank stores, of a pipeline a rank of the stage that stores most."""
    network, cut = training.model.network(), training.cut(grid)
    of_stages = (cut.held(network, stage) for stage in range(grid.stages))
    return max(sum(placement.local_numel(grid) for placement in of_stage) for of_stage in of_stages)


def check_memory(training: Training, grid: Grid, device_memory: float, device: str = "cuda") -> None:
    """Raises UsageError if a training step needs more than a device's whole memory (bytes). Choosing a grid leaves some
    of it free (memory.usable); one that a user names may fill it.
    """
    needs = Footprint(training, device).on(grid)
    if needs.total > device_memory:
        raise UsageError(
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
    of_stages = (cut.held(network, stage) for stage in range(grid.stages))
    most = max(sum(one.local_numel(grid) for one in of_stage if one.sharded) for of_stage in of_stages)
    return (1 + len(ADAMW.names)) * training.master * most


def check_host_memory(training: Training, grid: Grid, host_memory: float, ranks: int) -> None:
    """Raises UsageError if what the ranks of a node offload is more than its memory (bytes)."""
    needed = ranks * offloaded_bytes(training, grid)
    if needed > host_memory:
        raise UsageError(
            f"On grid {grid} --offload keeps {needed / 1e9:.3g} GB of {training.model.name}'s weights and moments in "
            f"the memory of a node with {ranks} rank{'s' if ranks > 1 else ''}, which has {host_memory / 1e9:.3g} GB: "
            "use more ranks on x, y or z, or fewer on a node, or leave --offload out."
        )


def check_grid(model: Architecture, grid: Grid, batch: Batch) -> None:
    """Raises UsageError, naming the numbers and what would fit, unless the grid divides network and batch."""
    batch.check(grid)
    model.check(grid)


def fits_nodes(grid: Grid, devices_per_node: int) -> bool:
    """Say whether each plane of x and y fills whole nodes, or each node whole planes, so that no plane lies across the
    border of two nodes that it doesn't fill. Ranks are numbered x first, and node by node.
    """
    plane = grid.plane
    return grid.size <= devices_per_node or devices_per_node % plane == 0 or plane % devices_per_node == 0
