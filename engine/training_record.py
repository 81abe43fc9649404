"""One record describes a training: which network is trained, and how. No torch in it.

The command line makes it; the planner, the tracer, the tuner, the trainer and contests with peers take it.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated, Literal

from cyclopts import Parameter

from engine.batch import Batch
from engine.grid import SPLITTING_ROWS, Axis, Grid
from engine.models.architecture import Architecture
from engine.options import NO_OPTION
from engine.overlap.flags import AUTO, Overlap
from engine.overlap.tasks import StepSchedule, passes_held
from engine.pipeline.cut import Cut, cut_evenly
from engine.pipeline.options import DEFAULT, PipelineOptions
from engine.pipeline.simulation import Replayed
from engine.pipeline.staged import Staged, staged, times_by_flops
from engine.reduce_dtype import gradient_dtype, reduce_dtype

PrecisionName = Literal["fp32", "fp64", "bf16", "fp16"]
LEAST_LOSS_SCALE, MOST_LOSS_SCALE = 1.0, 2.0**127
"""Of fp16: where gradients overflow even at the least, no scale mends it (Megatron-LM's --min-loss-scale), and beyond
the most a scale is no number in fp32.
"""
ReduceDtype = PrecisionName | Literal["compute"]
CheckpointEvery = int | Literal["auto"]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
NO_OVERLAP = Overlap()


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """These are options of AdamW with decoupled weight decay on matrices, none on biases and norms."""

    learning_rate: Annotated[float, Parameter(metavar="LR")] = 3e-4
    """after its warm-up"""
    beta1: Annotated[float, NO_OPTION] = 0.9
    beta2: Annotated[float, NO_OPTION] = 0.95
    eps: Annotated[float, NO_OPTION] = 1e-8
    weight_decay: Annotated[float, Parameter(metavar="W")] = 0.1
    """of matrices; biases and norms have none"""
    clip: Annotated[float, Parameter(metavar="NORM")] = 1.0
    """largest norm of the whole gradient; 0 doesn't clip"""
    warmup_steps: Annotated[int, Parameter(name="--lr-warmup-steps")] = 0
    """steps over which the rate rises"""
    decay_steps: Annotated[int, Parameter(name="--lr-decay-steps")] = 0
    """cosine to a tenth of the rate there; 0 keeps it"""
    final_fraction: Annotated[float, NO_OPTION] = 0.1


@dataclass(frozen=True)
class Training:
    """It describes a training. The names of number formats are those of --precision and --reduce-dtype, but
    "compute", which is that of the computation on however many ranks. checkpoint_every: only the input of every so
    many-th block is kept for the backward, all that blocks compute if 0; "auto": as checkpoint_group() has it. seed: of
    initial values, dropout and the order of the data. offload: whether fp32 weights and moments lie on the host.
    """

    model: Architecture
    batch: Batch
    precision: PrecisionName = "fp32"
    reduce_dtype: ReduceDtype | None = None
    checkpoint_every: CheckpointEvery = 0
    overlap: Overlap = NO_OVERLAP
    optim: OptimConfig = OptimConfig()
    seed: int = 0
    pipeline: PipelineOptions = DEFAULT
    offload: bool = False

    def staged(self, grid: Grid) -> Staged:
        """Cut the network into the grid's stages, with what they do when. Raises UsageError for what can't be."""
        passes, recompute = self.passes(grid), self.checkpoint_activations
        return staged(self.pipeline, self.model, grid.stages, passes, recompute=recompute)  # type: ignore[arg-type]

    def cut(self, grid: Grid) -> Cut:
        """Cut the network into the grid's stages, without asking which schedule is the fastest."""
        model, stages, recompute = self.model, grid.stages, self.checkpoint_activations
        if self.pipeline.schedule == AUTO and self.pipeline.stages is None:
            return cut_evenly(model, stages, recompute=recompute)
        return self.staged(grid).cut

    def replayed(self, grid: Grid) -> StepSchedule:
        """Give a schedule that depends on no arrivals: what stages do in a simulation by their flops."""
        found = self.staged(grid)
        times = times_by_flops(found.schedule, self.model, grid.stages, recompute=self.checkpoint_activations)
        return Replayed(found.schedule, grid.stages, self.passes(grid), times)

    def passes(self, grid: Grid) -> int:
        """Count the micro-batches of a rank in a step."""
        return self.batch.per_rank(grid) // self.batch.at_once(grid)

    def under_way(self, grid: Grid, stage: int) -> float:
        """Bound the passes whose backward is still to come on a stage, the one that is worked on included."""
        kept, _ = passes_held(self.staged(grid).schedule, stage, grid.stages, self.passes(grid))
        return max(1.0, kept)

    def with_bucket(self, grid: Grid, link_bytes_per_s: float | None, devices_per_node: int) -> "Training":
        """Give the same with the bucket of all-reduces over data that suits the grid and a node's network."""
        bucket = self.overlap.bucket(grid, link_bytes_per_s, devices_per_node)
        return replace(self, overlap=replace(self.overlap, bucket_bytes=bucket))

    @property
    def checkpoint_activations(self) -> bool:
        """Say whether blocks are recomputed in the backward."""
        return self.checkpoint_every != 0

    def checkpoint_group(self, grid: Grid) -> int:
        """Count the blocks that are recomputed together on a grid; 0 if none is."""
        if self.checkpoint_every == AUTO:
            return near_the_root(self.model.layers, grid.stages)
        return self.checkpoint_every

    @property
    def compute(self) -> int:
        """Count the bytes of an element of gathered weights and activations."""
        return BYTES[self.precision]

    @property
    def master(self) -> int:
        """Count the bytes of an element of the state; of statistics and losses too."""
        return max(self.compute, BYTES["fp32"])

    @property
    def gradient(self) -> int:
        """Count the bytes of an element of a rank's gradients."""
        return BYTES[gradient_dtype(self.precision, self.reduce_dtype, offload=self.offload)]

    def reduce_dtypes(self, grid: Grid) -> dict[Axis, str]:
        """Name the formats in which gradients are summed along each axis that sums them."""
        return {axis: reduce_dtype(self.precision, grid[axis], self.reduce_dtype) for axis in SPLITTING_ROWS}

    def reduce(self, grid: Grid, axis: Axis) -> int:
        """Count the bytes of an element of gradients on their way along an axis."""
        return BYTES[self.reduce_dtypes(grid)[axis]]


def near_the_root(layers: int, stages: int) -> int:
    """Give the factor of a stage's layers that is nearest to the square root of all layers, the smaller of two.

    axonn-ipdps22 V-A: in units of one layer's activations a stage holds, by Eq. 1, layers / N inputs of groups, for as
    many micro-batches as there are stages, and N layers that are recomputed; the sum is least at the root. Here a block
    keeps far more than its input, so that smaller groups may hold less. Of stages that differ the largest counts.

    >>> near_the_root(24, 1), near_the_root(24, 6), near_the_root(48, 4)
    (4, 4, 6)
    """
    most = -(-layers // stages)
    factors = [size for size in range(1, most + 1) if most % size == 0]
    return min(factors, key=lambda size: abs(size - sqrt(layers)))
