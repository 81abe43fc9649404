"""The record of a training: the options of how a network is trained, and the training that they make. No torch in it.

Every command that trains or plans has TrainingOptions among its options, and so have the series of suites, which write
them as words of a launch line. Results and plans hold them. A new option is a field here, and its effect: its check and
its flops below, an argument of parallelize() in for_model(), its memory in footprint/.
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from math import sqrt
from typing import Annotated, Any, Literal, Self

from cyclopts import Group, Parameter

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import SPLITTING_ROWS, Axis, Grid
from engine.models.architecture import Architecture
from engine.models.flops import step_flops
from engine.models.mode_choice import GATHERING, ModeName, check_mode, choose_mode
from engine.models.network import Network
from engine.optimizer_state import OptimizerName
from engine.options import NO_OPTION, option_words, word
from engine.overlap.flags import ALL, AUTO, Overlap
from engine.overlap.tasks import StepSchedule, live_whole_passes
from engine.pipeline.cut import Cut, cut_evenly
from engine.pipeline.registry import DEFAULT, PipelineOptions
from engine.pipeline.simulation import Replayed
from engine.pipeline.staged import Staged, staged, times_by_flops
from engine.reduce_dtype import reduce_dtype
from engine.tensor_mode import TensorMode

PrecisionName = Literal["fp32", "fp64", "bf16", "fp16"]
LEAST_LOSS_SCALE, MOST_LOSS_SCALE = 1.0, 2.0**127
"""Of fp16: where gradients overflow even at the least, no scale mends it (Megatron-LM's --min-loss-scale), and beyond
the most a scale is no number in fp32.
"""
FIRST_LOSS_SCALE = 2.0**16
"""Loss scale at the start: torch.amp.GradScaler's init_scale."""
ReduceDtype = PrecisionName | Literal["compute"]
CheckpointEvery = int | Literal["auto"]
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
HALF = ("bf16", "fp16")
COMPUTE: Literal["compute"] = "compute"
"""Format of sums that is the computation's, over any number of ranks."""
NO_OVERLAP = Overlap()

PIPELINE = Group("pipeline: stages of the network, behind one another", sort_key=2.5)
OVERLAP = Group("overlap: communication behind compute, with the same numbers", sort_key=3)
OPTIMIZER = Group("optimizer: AdamW", sort_key=4)
InPipeline = Annotated[PipelineOptions, Parameter(name="*", group=PIPELINE)]
OVERLAP_HELP = (
    "none, all, or a comma list: oar (a layer's all-reduce behind its weight gradient), ors (reduce-scatters waited "
    "for late), oag (gathers ahead of their use), cache=N or cache=auto (gathers of N blocks kept for the "
    "recomputation of --checkpoint-activations), data (all-reduces over data during the last backward, and of each "
    "bucket the optimizer's step, unless --clip needs all gradients first)"
)
OverlapFlags = Annotated[
    Overlap, Parameter(name="--overlap", help=OVERLAP_HELP, show_default="all"), word(Overlap.parse, "FLAGS")
]
"""Everything of Overlap but its pace."""


def read_every(text: str) -> CheckpointEvery:
    """Read a number of blocks, or auto. Raises UsageError."""
    if text == AUTO:
        return AUTO
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise UsageError(f"--checkpoint-every is a number of blocks from 1 up, or auto, but {text!r} was given.")
    return int(text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of how a network is trained, declared once for all commands; in the order of a launch line's words."""

    precision: PrecisionName = "fp32"
    """bf16 and fp16 keep fp32 masters; fp16 scales its loss"""
    checkpoint_activations: bool = False
    """recompute each block in the backward"""
    checkpoint_every: Annotated[CheckpointEvery | None, word(read_every, "N|auto")] = None
    """recompute N blocks together, keeping one input per group; auto: N near sqrt(layers)"""
    checkpoint_blocks: int | None = None
    """with either of these, recompute so many blocks, the first ones (default: all)"""
    offload: bool = False
    """keep fp32 weights and moments of matrices on the host; micro-batches then add in --reduce-dtype, if given"""
    reduce_dtype: PrecisionName | None = None
    """gradients while summed (default: precision, but fp32 of fp16, and of bf16 along z or data from 64 ranks on)"""
    tensor_mode: ModeName = "auto"
    """4d: Algorithm 1 of axonn-sc24; split: ranks that would have the same activations have a part of them each, so
    that no work is repeated (attention along y, norms along x), whole samples between two products where y divides
    them, else heads; split-heads: heads always; auto: split where y is above 1 and it can be, else 4d; 2d: SUMMA on a
    square of x and y; 2d-published: with all weights as in its paper; 1d, 2.5d, 3d: 4d along x, 2d in up to as many
    squares as one has columns, and split on a cube, as colossal-ai calls them"""
    gather_inputs_again: bool = False
    """with split activations, keep a rank's own part of what a product takes, and gather it again in the backward: less
    memory, more bytes"""
    optimizer: OptimizerName = "adamw"
    """none: no steps, moments or fp32 weights, to time gradients; micro-batches then add in --reduce-dtype, if given"""

    @property
    def recomputed_together(self) -> CheckpointEvery:
        """Number of blocks that are recomputed together in the backward; 0 keeps all that blocks compute."""
        return int(self.checkpoint_activations) if self.checkpoint_every is None else self.checkpoint_every

    def recomputing(self, together: CheckpointEvery) -> Self:
        """Return the same options with so many blocks recomputed together."""
        return replace(self, **_recomputing(together))

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return the same options but for the given ones. Raises UsageError.

        checkpoint_every may be a word, and 0, which recomputes nothing.
        """
        changed = replace(self, **{name: value for name, value in given.items() if name != "checkpoint_every"})
        if "checkpoint_every" not in given:
            return changed
        every = str(given["checkpoint_every"])
        return changed.recomputing(0 if every == "0" else read_every(every))

    def asked(self) -> "TrainingOptions":
        """Return these options alone, in the fewest words."""
        values = {option.name: getattr(self, option.name) for option in fields(TrainingOptions)}
        return TrainingOptions(**(values | _recomputing(self.recomputed_together)))

    def words(self) -> list[str]:
        """Write what isn't as by default, as every command takes it."""
        return option_words(self.asked())

    def check(self, model: Architecture) -> None:
        """Raise UsageError for options that the network, or one another, leave no sense."""
        if self.gather_inputs_again and self.tensor_mode not in GATHERING:
            raise UsageError(
                f"--gather-inputs-again is for the inputs that split activations gather, but --tensor-mode "
                f"{self.tensor_mode} gathers none: leave one of both out."
            )
        every = self.checkpoint_every
        if every not in (None, AUTO) and every > model.layers:
            raise UsageError(
                f"--checkpoint-every {every} recomputes {every} blocks together, but {model.name} has {model.layers}: "
                f"use {model.layers} or fewer, or auto."
            )
        first = self.checkpoint_blocks
        if first is not None and not self.recomputed_together:
            raise UsageError(
                f"--checkpoint-blocks {first} says how many blocks are recomputed, but none are: add "
                "--checkpoint-activations or --checkpoint-every."
            )
        if first is not None and not 1 <= first <= model.layers:
            raise UsageError(
                f"--checkpoint-blocks is a number of blocks from 1 to {model.layers}, all that {model.name} has, but "
                f"{first} was given."
            )
        half = self.precision in HALF
        if self.offload and not half:
            raise UsageError(
                f"--offload leaves the weights that it keeps on the host on the device in bf16 or fp16, but "
                f"--precision is {self.precision}: give one of these."
            )
        if self.offload and self.optimizer == "none":
            raise UsageError(
                "--offload keeps what the optimizer has on the host, but --optimizer none has nothing: leave one out."
            )
        if self.reduce_dtype not in (None, COMPUTE, self.precision, *(("fp32",) if half else ())):
            raise UsageError(
                f"With --precision {self.precision} gradients reduce in {self.precision}"
                f"{' or fp32' if half else ''}, but --reduce-dtype {self.reduce_dtype} was given."
            )


def _recomputing(together: CheckpointEvery) -> dict[str, Any]:
    """Return the options, in the fewest words, that recompute so many blocks together."""
    found = {"checkpoint_activations": together == 1, "checkpoint_every": None if together in (0, 1) else together}
    return found if together else found | {"checkpoint_blocks": None}


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """Options of AdamW, with decoupled weight decay on matrices and none on biases and norms."""

    learning_rate: Annotated[float, Parameter(metavar="LR")] = 3e-4
    """after its warm-up"""
    beta1: Annotated[float, Parameter(metavar="B")] = 0.9
    """part of the first moment that stays in a step"""
    beta2: Annotated[float, Parameter(metavar="B")] = 0.95
    """the same of the second moment"""
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


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """Options of every training that is carried out, and of no product alone."""

    pipeline: InPipeline = DEFAULT
    seed: int = 0
    """of initial values, dropout and the order of the data"""
    optim: Annotated[OptimConfig, Parameter(name="*", group=OPTIMIZER)] = OptimConfig()


@dataclass(frozen=True, kw_only=True)
class OverlapOption:
    """Overlap of a training, or of a plan, that takes one for all its steps."""

    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL


@dataclass(frozen=True)
class Training(RunOptions, OverlapOption):
    """A training: its network, batch and options. A reduce_dtype of "compute" is the precision, over any ranks."""

    model: Architecture
    batch: Batch
    _: KW_ONLY
    checkpoint_activations: bool = field(init=False)
    """whether blocks are recomputed in the backward, which checkpoint_every says"""
    checkpoint_every: CheckpointEvery = 0
    overlap: Overlap = NO_OVERLAP

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoint_activations", self.checkpoint_every != 0)

    @classmethod
    def of(cls, options: TrainingOptions, model: Architecture, batch: Batch, **own: Any) -> Self:
        """Make a training with all fields that the options share with it. own: further ones, or in their place."""
        shared = {
            one.name: getattr(options, one.name) for one in fields(cls) if one.init and hasattr(options, one.name)
        }
        own = {"checkpoint_every": options.recomputed_together, "model": model, "batch": batch} | own
        return cls(**(shared | own))

    def recomputing(self, together: CheckpointEvery) -> Self:
        """Return the same training with so many blocks recomputed together."""
        return replace(self, checkpoint_every=together, checkpoint_blocks=self.checkpoint_blocks if together else None)

    @property
    def recomputed_blocks(self) -> int:
        """Number of blocks, the first ones, that are recomputed in the backward."""
        if not self.checkpoint_activations:
            return 0
        layers = self.model.layers
        return layers if self.checkpoint_blocks is None else min(self.checkpoint_blocks, layers)

    def options_on(self, grid: Grid) -> dict[str, Any]:
        """Return the options as they come out on a grid, for results."""
        found, mode = {option.name: getattr(self, option.name) for option in fields(TrainingOptions)}, self.mode(grid)
        return found | {
            "checkpoint_every": self.checkpoint_group(grid),
            "reduce_dtype": self.reduce_dtypes(grid),
            "tensor_mode": mode.name,
            "gather_inputs_again": mode.gathers_again,
        }

    def check_mode(self, grid: Grid, network: Network | None = None) -> None:
        """Raise UsageError if the network can't lie on the grid in its tensor mode. network: as of mode()."""
        check_mode(self.tensor_mode, network or self.model.network(), grid, self.batch.at_once(grid))

    def for_model(self, grid: Grid) -> Mapping[str, Any]:
        """Return what parallelize() takes of the options on a grid, by argument."""
        return {
            "seed": self.seed,
            "overlap": self.overlap,
            "checkpoint_every": self.checkpoint_group(grid),
            "checkpoint_blocks": self.checkpoint_blocks,
            "offload": self.offload,
            "mode": self.mode(grid),
        }

    def mode(self, grid: Grid, network: Network | None = None) -> TensorMode:
        """Return the tensor mode on a grid. network: the model's, where it is at hand."""
        network = network or self.model.network()
        mode = choose_mode(self.tensor_mode, network, grid, self.batch.at_once(grid))
        return replace(mode, gathers_again=self.gather_inputs_again and mode.gathers)

    @property
    def flops(self) -> int:
        """Floating-point operations of a step, with what is recomputed."""
        return step_flops(self.model, self.batch.sequences, recomputed=self.recomputed_blocks)

    @property
    def alike(self) -> bool:
        """Whether a step does the same with each block."""
        return self.model.network().alike and self.recomputed_blocks in (0, self.model.layers)

    def staged(self, grid: Grid) -> Staged:
        """Cut the network into the grid's stages, with what they do when. Raises UsageError for what can't be."""
        passes, recomputed = self.passes(grid), self.recomputed_blocks
        return staged(self.pipeline, self.model, grid.stages, passes, recomputed=recomputed)  # type: ignore[arg-type]

    def cut(self, grid: Grid) -> Cut:
        """Cut the network into the grid's stages, without asking which schedule is the fastest."""
        model, stages, recomputed = self.model, grid.stages, self.recomputed_blocks
        if self.pipeline.schedule == AUTO and self.pipeline.stages is None:
            return cut_evenly(model, stages, recomputed=recomputed)
        return self.staged(grid).cut

    def replayed(self, grid: Grid) -> StepSchedule:
        """Return a schedule that depends on no arrivals: what stages do in a simulation by their flops."""
        found = self.staged(grid)
        times = times_by_flops(found.schedule, self.model, grid.stages, recomputed=self.recomputed_blocks)
        return Replayed(found.schedule, grid.stages, self.passes(grid), times)

    def passes(self, grid: Grid) -> int:
        """Count the micro-batches of a rank in a step."""
        return self.batch.per_rank(grid) // self.batch.at_once(grid)

    def under_way(self, grid: Grid, stage: int) -> float:
        """Bound the passes whose backward is still to come on a stage, the one that is worked on included."""
        kept, _ = live_whole_passes(self.staged(grid).schedule, stage, grid.stages, self.passes(grid))
        return max(1.0, kept)

    def with_bucket(self, grid: Grid, link_bytes_per_s: float | None, devices_per_node: int) -> "Training":
        """Return the same with the bucket of all-reduces over data that suits the grid and a node's network."""
        bucket = self.overlap.bucket(grid, link_bytes_per_s, devices_per_node)
        return replace(self, overlap=replace(self.overlap, bucket_bytes=bucket))

    def checkpoint_group(self, grid: Grid) -> int:
        """Count the blocks that are recomputed together on a grid; 0 if none is."""
        if self.checkpoint_every == AUTO:
            return near_the_root(self.model.layers, grid.stages)
        return self.checkpoint_every

    @property
    def compute(self) -> int:
        """Bytes of an element of gathered weights and activations."""
        return BYTES[self.precision]

    @property
    def master(self) -> int:
        """Bytes of an element of the stored weights and of the optimizer's state."""
        return BYTES[self.master_format]

    @property
    def wide(self) -> int:
        """Bytes of an element of statistics and losses."""
        return max(self.compute, BYTES["fp32"])

    @property
    def master_format(self) -> str:
        """Name of the format of the stored weights: the computation's where no optimizer needs more digits."""
        if self.optimizer == "none":
            return self.precision
        return "fp64" if self.precision == "fp64" else "fp32"

    @property
    def gradient_format(self) -> str:
        """Name of the format in which a rank adds the gradients of micro-batches: fp32 or fp64, but the one given for
        sums where the masters are offloaded, or there are none (axonn-ipdps22 V-B keeps fp16).
        """
        if (self.offload or self.optimizer == "none") and self.reduce_dtype is not None:
            return reduce_dtype(self.precision, 1, self.reduce_dtype)
        return "fp64" if self.precision == "fp64" else "fp32"

    @property
    def formats(self) -> tuple[str, str | None, str, str]:
        """Names of the formats of computation, of sums over ranks if one is given, of sums over micro-batches, and of
        the stored weights.
        """
        return self.precision, self.reduce_dtype, self.gradient_format, self.master_format

    @property
    def gradient(self) -> int:
        """Bytes of an element of a rank's gradients."""
        return BYTES[self.gradient_format]

    def reduce_dtypes(self, grid: Grid) -> dict[Axis, str]:
        """Name the formats in which gradients are summed along each axis that sums them."""
        return {axis: reduce_dtype(self.precision, grid[axis], self.reduce_dtype) for axis in SPLITTING_ROWS}

    def reduce(self, grid: Grid, axis: Axis) -> int:
        """Count the bytes of an element of gradients on their way along an axis."""
        return BYTES[reduce_dtype(self.precision, grid[axis], self.reduce_dtype)]


def near_the_root(layers: int, stages: int) -> int:
    """Return the factor of a stage's layers that is nearest to the square root of all layers, the smaller of two.

    axonn-ipdps22 V-A: in units of one layer's activations a stage holds, by Eq. 1, layers / N inputs of groups, for as
    many micro-batches as there are stages, and N layers that are recomputed; the sum is least at the root. Here a block
    keeps far more than its input, so that smaller groups may hold less. Of stages that differ the largest counts.

    >>> near_the_root(24, 1), near_the_root(24, 6), near_the_root(48, 4)
    (4, 4, 6)
    """
    most = -(-layers // stages)
    factors = [size for size in range(1, most + 1) if most % size == 0]
    return min(factors, key=lambda size: abs(size - sqrt(layers)))
