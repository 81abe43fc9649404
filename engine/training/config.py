"""Options of a training run. No torch.

Every option of `train` is a field here, or of a dataclass that is a field here; the text under it is its help.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from engine.batch import Batch
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import published
from engine.models.choice import ModelChoice
from engine.options import Bytes, DeviceName, File, Folder, GridOrAuto, Labels, Numbers, Out
from engine.timeouts import Timeouts
from engine.training_record import OVERLAP, PIPELINE, OverlapOption, RunOptions, Training

MODEL = Group("model: a published size, or a shape", f"Published sizes: {', '.join(published())}", sort_key=1)
RUN = Group("run", sort_key=2)
CHECKPOINTS = Group("checkpoints", sort_key=5)
EVALUATION = Group("evaluation: loss, and what is right, of data that isn't trained on", sort_key=5.5)
PROFILE = Group(
    "profile: what ran in some iterations, which take longer for it and don't count; on CUDA all have timing events",
    sort_key=6,
)

TuneMatmul = bool | Literal["force"]
EnergyOption = Literal["auto", "off"]
ENERGY_HELP = (
    "joules of the counted iterations, read before and after them: of devices (NVML, AMD SMI; needs zeus: pip install "
    "'.[energy]'), processors and memory (RAPL), whole nodes (Cray pm_counters); auto: what has a counter, and the "
    "result says why the rest is not measured. PAR4D_SYSFS names the folder where /sys is, if it is elsewhere"
)
BATCH_OPTIONS = {"sequences": "batch-size", "micro": "micro-batch"}
BatchOptions = Annotated[Batch, Parameter(name="*", name_transform=BATCH_OPTIONS.__getitem__, metavar="SEQS")]

SYSTEM_HELP = "whose facts --grid auto goes by (default: this machine's)"
SystemOption = Annotated[str | None, Parameter(metavar="NAME", help=SYSTEM_HELP)]

PIPE_HELP = "stages, each of the ranks that --grid says: --grid 2x1x2x4 --pipe 3 is --grid 2x1x2x4p3"
Pipe = Annotated[int | None, Parameter(help=PIPE_HELP, group=PIPELINE, metavar="STAGES")]


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Timeouts, RunOptions):
    """Options of every command that trains. grid: None for "auto"."""

    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice()
    grid: Annotated[GridOrAuto, Parameter(show_default="auto")] = None
    """e.g. 2x1x2x4, or 2x1x2x4p3 with a pipeline of 3 stages; auto: the fastest of a few that are simulated, stages,
    schedule and micro-batch too, which takes seconds, or as long as a minute at thousands of ranks; with --pipe 1, or
    where the system can't be simulated, by a formula, and one stage"""
    system: SystemOption = None
    pipe: Pipe = None
    messages: Annotated[Literal["auto", "mpi"], Parameter(group=PIPELINE)] = "auto"
    """what carries activations between stages; auto: what carries collectives, mpi: MPI, whose launcher starts ranks"""
    batch: BatchOptions
    data: Annotated[str, Parameter(metavar="PATH|synthetic")]
    """a corpus of `data prepare`, or synthetic"""
    verify: bool = False
    """read all of --data first, on each node, and compare it with the digests that `data prepare` wrote"""
    device: DeviceName = "auto"
    devices_per_node: int = 1
    """for --grid auto: x stays in a node, and no plane of x and y lies across two"""
    device_memory: Bytes | None = None
    """of one device: a step must fit; --grid auto splits until it does, --schedule auto keeps as much as is free"""
    link_bytes_per_s: Annotated[float | None, Parameter(metavar="BYTES")] = None
    """of a node's network one way: what a step can't beat where ranks share cores"""
    intra_node_bytes_per_s: Annotated[float | None, Parameter(metavar="BYTES")] = None
    """between two devices of a node one way: where both links are known, --grid auto takes what communicates least"""
    tune_matmul: TuneMatmul = False
    """time each layer's products in all modes first, and take the fastest; =force times again what a job before did"""
    breakdown: bool = False
    """time each collective and phase (always on CPUs, where it costs nothing; on CUDA it takes timing events)"""
    labels: Labels = ()
    out: Out = Path("results/result.json")

    @property
    def device_kind(self) -> str:
        """Kind of device that memory is counted for, where auto is still open."""
        return "cpu" if self.device == "cpu" else "cuda"

    def over_mpi(self, grid: Grid) -> bool:
        """Say whether stages of the grid send messages over MPI."""
        return self.messages == "mpi" and grid.stages > 1


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig, OverlapOption):
    """Options of `train`. The learning rate has a warm-up of its own, in optim."""

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
    energy: Annotated[EnergyOption, Parameter(help=ENERGY_HELP)] = "auto"
    timeline: Annotated[File | None, Parameter(group=OVERLAP)] = None
    """write the last counted iteration as a Chrome trace"""
    save: Annotated[Folder | None, Parameter(group=CHECKPOINTS)] = None
    """write checkpoints below DIR"""
    save_every: Annotated[int, Parameter(group=CHECKPOINTS)] = 0
    """after every N-th step"""
    resume: Annotated[Folder | None, Parameter(group=CHECKPOINTS)] = None
    """go on from the latest checkpoint below DIR"""
    other_data: Annotated[bool, Parameter(group=CHECKPOINTS)] = False
    """go on with other --data than the checkpoint was trained on"""
    evaluate_every: Annotated[int, Parameter(group=EVALUATION)] = 0
    """after every N-th step, and after the last, of which the times of iterations have nothing"""
    evaluation_data: Annotated[Folder | None, Parameter(group=EVALUATION)] = None
    """prepared as --data is: as many whole batches as it has"""
    export: Annotated[Folder | None, Parameter(group=CHECKPOINTS)] = None
    """after the last step write the weights of --model hf:... into DIR, in the format that they came in"""

    profile: Annotated[Folder | None, Parameter(group=PROFILE)] = None
    """write a trace of torch.profiler a rank into DIR; par4d breakdown reads it"""
    profile_iterations: Annotated[Numbers, Parameter(group=PROFILE)] = ()
    """one stretch of them, counted from 0 (default: the last)"""
    profile_ranks: Annotated[Numbers, Parameter(group=PROFILE, show_default="0")] = (0,)
    """whose trace is taken"""

    @classmethod
    def of(cls, config: RunConfig, **own: Any) -> "TrainConfig":
        """Make the options of a training of those of a run of any kind. own: further ones, or in their place."""
        return cls(**({field.name: getattr(config, field.name) for field in fields(RunConfig)} | own))

    @property
    def profiled_iterations(self) -> tuple[int, ...]:
        """Iterations that a profile is taken of."""
        return () if self.profile is None else self.profile_iterations or (self.iterations - 1,)

    def training(self, model: Architecture) -> Training:
        """Make the record of this training, of that network."""
        return Training.of(self, model, self.batch)
