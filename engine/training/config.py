"""What a training run is asked to do, checked as far as it can be before anything starts. No torch.

Every option of `train` is a field here, or of a dataclass that is a field here; the text under it is its help.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from cyclopts import Group, Parameter

from engine.batch import Batch
from engine.data.dataset import Dataset, open_dataset
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import published
from engine.models.choice import ModelChoice
from engine.options import (
    NO_OPTION,
    Bytes,
    Device,
    File,
    Folder,
    GridOrAuto,
    Labels,
    Out,
    Seconds,
    check_file,
    check_folder,
    word,
)
from engine.overlap.flags import ALL, AUTO, Overlap
from engine.planning.choose import choose_grid
from engine.planning.fit import check_grid, check_memory, fits_nodes
from engine.planning.memory import Workload

if TYPE_CHECKING:
    from engine.checkpoint.manifest import Saved

MODEL = Group("model: a published size, or a shape", f"Published sizes: {', '.join(published())}", sort_key=1)
RUN = Group("run", sort_key=2)
OVERLAP = Group("overlap: communication behind compute, with the same numbers", sort_key=3)
OPTIMIZER = Group("optimizer: AdamW", sort_key=4)
CHECKPOINTS = Group("checkpoints", sort_key=5)

LONGEST_TIMEOUT_S = 31_536_000  # a year

PrecisionName = Literal["fp32", "fp64", "bf16"]
PrecisionOption = Annotated[PrecisionName, Parameter(help="bf16 keeps fp32 masters")]
CheckpointActivations = Annotated[bool, Parameter(help="recompute each block in the backward")]
BATCH_OPTIONS = {"sequences": "batch-size", "micro": "micro-batch"}
BatchOptions = Annotated[Batch, Parameter(name="*", name_transform=BATCH_OPTIONS.__getitem__, metavar="SEQS")]

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
CLIPPED = (
    "--overlap data sums gradients early, but the optimizer waits for all of them: clipping needs the norm of the "
    "whole gradient (--clip 0 steps each bucket as it is summed)."
)


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW with decoupled weight decay on matrices, none on biases and norms."""

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


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What every command that trains is asked for. grid: None for "auto"."""

    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice()
    grid: Annotated[GridOrAuto, Parameter(show_default="auto")] = None
    """e.g. 2x1x2x4; auto chooses one"""
    batch: BatchOptions
    precision: PrecisionOption = "fp32"
    reduce_dtype: PrecisionName | None = None
    """gradients while summed (default: precision)"""
    checkpoint_activations: CheckpointActivations = False
    data: Annotated[str, Parameter(metavar="PATH|synthetic")]
    """a corpus of `data prepare`, or synthetic"""
    seed: int = 0
    """of initial values, dropout and the order of the data"""
    device: Device = "auto"
    timeout_s: Annotated[Seconds, Parameter(name="--timeout")] = 600.0
    """for any collective"""
    devices_per_node: int = 1
    """for --grid auto: x stays in a node, and no plane of x and y lies across two"""
    device_memory: Bytes | None = None
    """of one device: what a step needs must fit, and --grid auto splits until it does"""
    link_bytes_per_s: Annotated[float | None, Parameter(metavar="BYTES")] = None
    """of a node's network one way: what a step can't beat where ranks share cores"""
    breakdown: bool = False
    """time each collective and phase (always on CPUs, where it costs nothing; on CUDA it takes timing events)"""
    labels: Labels = ()
    out: Out = Path("result.json")
    optim: Annotated[OptimConfig, Parameter(name="*", group=OPTIMIZER)] = OptimConfig()


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """What `train` is asked for. The learning rate has a warm-up of its own, in optim."""

    iterations: int = 10
    """steps to take"""
    warmup: int = 2
    """first iterations, which don't count in the reported time"""
    peak_flops: Annotated[float | None, Parameter(metavar="FLOPS")] = None
    """advertised peak of one device, for HFU and MFU"""
    empirical_peak_flops: Annotated[float | None, Parameter(metavar="FLOPS")] = None
    """what matrix products reach on one device, to compare with"""
    measure_peak: bool = False
    """find that out first: all ranks multiply matrices at once"""
    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL
    timeline: Annotated[File | None, Parameter(group=OVERLAP)] = None
    """write the last iteration as a Chrome trace"""
    save: Annotated[Folder | None, Parameter(group=CHECKPOINTS)] = None
    """write checkpoints below DIR"""
    save_every: Annotated[int, Parameter(group=CHECKPOINTS)] = 0
    """after every N-th step"""
    resume: Annotated[Folder | None, Parameter(group=CHECKPOINTS)] = None
    """go on from the latest checkpoint below DIR"""

    @property
    def workload(self) -> Workload:
        """What of it decides about memory."""
        return Workload(self.batch, self.precision, self.reduce_dtype, self.checkpoint_activations, self.overlap)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that has passed every check that needs no process: what was asked for, and what it came to.

    saved: the checkpoint that it resumes.
    """

    kind: ClassVar[Literal["train", "ablation"]] = "train"
    config: TrainConfig
    model: Architecture
    grid: Grid
    dataset: Dataset
    saved: "Saved | None" = None

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Those that the run takes."""
        return (self.config.overlap,)

    def as_options(self) -> dict[str, Any]:
        """For the record: every option as it came out, in JSON's types: a later default changes nothing of it."""
        config = self.config
        options = asdict(config)
        del options["labels"]
        options |= {"model": self.model.options, "grid": str(self.grid)}
        options["batch"]["micro"] = config.batch.micro or config.batch.per_rank(self.grid)
        options["reduce_dtype"] = config.reduce_dtype or config.precision
        tuning = options.pop("overlap")
        options |= {key: tuning[key] for key in ("prefetch_depth", "reduce_window", "bucket_bytes", "cache_bytes")}
        options["overlap"] = str(config.overlap)
        if self.saved is not None:
            options["resume"] = self.saved.folder
        return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}


def checked(config: TrainConfig, ranks: int) -> Plan:
    """What the run comes to on so many ranks, after every check that needs no process. Raises UsageError."""
    if config.iterations < 1 or not 0 <= config.warmup < config.iterations:
        raise UsageError(
            f"A run needs at least one iteration after its warm-up, but {config.iterations} iterations with a warm-up "
            f"of {config.warmup} were asked for."
        )
    _check_numbers(config)
    _check_places(config)
    model = config.model.resolve()
    check_cache(config.overlap, model)
    if (config.save is None) != (config.save_every == 0) or config.save_every < 0:
        raise UsageError("Saving needs both --save DIR and --save-every N with N at least 1.")
    grid = config.grid or choose_grid(
        model,
        ranks,
        config.workload,
        devices_per_node=config.devices_per_node,
        device_memory=config.device_memory,
    )
    if grid.size != ranks:
        raise UsageError(
            f"Grid {grid} has {grid.size} ranks, but {ranks} {'was' if ranks == 1 else 'were'} started: start "
            f"{grid.size}, or use --grid auto."
        )
    check_grid(model, grid, config.batch)
    if config.device_memory is not None:
        check_memory(model, grid, config.workload, config.device_memory)
    dataset = open_dataset(config.data, vocabulary=model.vocabulary, sequence_length=model.sequence)
    return Plan(config, model, grid, dataset, _saved(config, model))


def check_cache(overlap: Overlap, model: Architecture) -> None:
    """Raises UsageError for a cache of more blocks than there are."""
    if overlap.cache != AUTO and overlap.cache > model.layers:
        raise UsageError(
            f"--overlap cache={overlap.cache} keeps the weights of {overlap.cache} blocks, but {model.name} has "
            f"{model.layers}: use cache={model.layers} or fewer."
        )


def _saved(config: TrainConfig, model: Architecture) -> "Saved | None":
    """The checkpoint to resume. Raises UsageError if it is not of this run."""
    if config.resume is None:
        return None
    from engine.checkpoint.manifest import Saved, find, read_manifest

    folder = find(config.resume)
    manifest = read_manifest(folder, model)
    if manifest.batch_size != config.batch.sequences or manifest.seed != config.seed:
        raise UsageError(
            f"The checkpoint {folder} was trained with --batch-size {manifest.batch_size} --seed {manifest.seed}: "
            f"resume it with the same, or its place in the data is lost."
        )
    return Saved(folder, manifest)


def notices(plan: Plan) -> list[str]:
    """What of the run is likely not meant, a sentence each: a grid that ill suits the nodes, an overlap that was asked
    for by name and does nothing.
    """
    config, overlap, grid = plan.config, plan.config.overlap, plan.grid
    found: list[str] = []
    if config.devices_per_node > 1 and not fits_nodes(grid, config.devices_per_node):
        found.append(
            f"Grid {grid} lays planes of x and y, {grid.x * grid.y} ranks each, across the border of nodes of "
            f"{config.devices_per_node} devices: their sums leave the node where grids of --grid auto don't."
        )
    if str(overlap) == str(ALL):
        return found
    if overlap.cache and not config.checkpoint_activations:
        found.append(
            f"--overlap cache={overlap.cache} does nothing here: without --checkpoint-activations each weight is "
            "gathered only once."
        )
    if overlap.data and config.optim.clip and plan.grid.data > 1:
        found.append(CLIPPED)
    return found


def _check_numbers(config: TrainConfig) -> None:
    """Raises UsageError for an option that is out of its range."""
    optim = config.optim
    positive: dict[str, float | None] = {
        "--timeout": config.timeout_s,
        "--learning-rate": optim.learning_rate,
        "--devices-per-node": config.devices_per_node,
        "--device-memory": config.device_memory,
        "--peak-flops": config.peak_flops,
        "--empirical-peak-flops": config.empirical_peak_flops,
        "--link-bytes-per-s": config.link_bytes_per_s,
    }
    not_negative = {
        "--clip": optim.clip,
        "--weight-decay": optim.weight_decay,
        "--lr-warmup-steps": optim.warmup_steps,
        "--lr-decay-steps": optim.decay_steps,
    }
    for option, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{option} is a positive number, but {value} was given.")
    if config.timeout_s > LONGEST_TIMEOUT_S:
        raise UsageError(f"--timeout is at most {LONGEST_TIMEOUT_S} seconds, but {config.timeout_s:g} was given.")
    for option, value in not_negative.items():
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{option} is a number from 0 up, but {value} was given.")
    if config.reduce_dtype not in (None, config.precision) and (config.precision, config.reduce_dtype) != (
        "bf16",
        "fp32",
    ):
        raise UsageError(
            f"With --precision {config.precision} gradients reduce in {config.precision}"
            f"{' or fp32' if config.precision == 'bf16' else ''}, but --reduce-dtype {config.reduce_dtype} was given."
        )


def _check_places(config: TrainConfig) -> None:
    """Raises UsageError unless the result, and checkpoints if any, can be written where they should go."""
    check_file("--out", config.out)
    if config.timeline is not None:
        check_file("--timeline", config.timeline)
    if config.save is not None:
        check_folder("--save", config.save)
