"""Schema of result.json: what a run measured, and everything needed to trace and repeat it.

Read and written only here. Times are in seconds, memory in bytes, rates per second, utilisations as fractions of one.
"""

import math
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from engine.errors import UsageError
from engine.files import json_of, write_text
from engine.result.schema.bench import (
    CountedStep,
    GemmPoint,
    ImageSheet,
    LaunchTime,
    LayerCosts,
    Links,
    StreamBandwidth,
    Transfer,
)
from engine.result.schema.contest import Contest, TrainingSide, migrated
from engine.result.schema.machine import Bindings, Transport
from engine.result.schema.profile import Profile
from engine.result.schema.step import Breakdown, Collective, Energy, GridText, LossScaling, Timeline
from engine.result.schema.tuning import Tuning
from engine.schema import Document, Record, first_problem

SCHEMA: Literal["par4d.result"] = "par4d.result"
VERSION: Literal[6] = 6
MOST_NATS = 700.0
"""Loss whose exponential a number holds."""

Diagnosis = Literal["nothing", "symptom", "cause"]
"""How far the reason of a failed run goes: the run ended before a rank could say why; a rank lost others, it isn't
known why; or the cause.
"""

_Kind = TypeVar("_Kind", bound=Record)
AnySide = TypeVar("AnySide", bound=TrainingSide)


class Model(Record):
    """Network that was trained."""

    name: str
    family: str | None = None
    """Family of architectures; None is gpt."""
    layers: int
    hidden: int
    heads: int
    vocabulary: int | None = None
    """None of images."""
    sequence: int
    parameters: int
    parameters_per_rank: int


class Iteration(Record):
    """Training step."""

    index: int
    time_s: float
    loss: float
    """Mean cross-entropy in nats per token over the global batch."""
    grad_norm: float | None
    learning_rate: float
    warmup: bool
    profiled: bool = False
    """Whether it was profiled, and so took longer."""
    loss_scale: float | None = None
    skipped: bool = False
    """Whether a gradient overflowed at that scale, so that there is no norm and no step."""

    @property
    def counted(self) -> bool:
        """Whether the summary counts it."""
        return not self.warmup and not self.profiled


class Summary(Record):
    """Figures of the whole job over the counted iterations (all but the warm-up, axonn-sc24 VI-C, and those that were
    profiled).
    """

    counted_iterations: int
    time_per_iteration_s: float
    median_time_s: float
    tokens_per_s: float
    samples_per_s: float | None = None
    """Rows of the batch, such as sequences or images."""
    hardware_flops_per_s: float
    """Rate with the recomputation of activation checkpointing; that of model flops is without."""
    model_flops_per_s: float
    repeated_flops_per_s: float = 0.0
    """Rate of what Algorithm 1 runs Gy times over, which is in neither."""
    peak_flops_per_device: float | None = None
    hfu: float | None = None
    """hardware_flops_per_s over the job's advertised peak."""
    mfu: float | None = None
    """model_flops_per_s over the job's advertised peak."""
    empirical_peak_flops_per_device: float | None = None
    empirical_peak_measured: bool = False
    """Whether the job's own ranks measured it at once, instead of its being given."""
    of_empirical: float | None = None
    """hardware_flops_per_s over the job's empirical peak."""


class Evaluation(Record):
    """Evaluation of data that isn't trained on, after a step."""

    step: int
    """Steps that were done, those before a resume included."""
    loss: float
    """Mean in nats."""
    right: float | None = None
    """Share of tokens or images whose target has the highest logit; None where nothing is right or wrong."""
    samples: int
    time_s: float

    @property
    def perplexity(self) -> float:
        """Exponential of the loss, which is the perplexity of text; infinite beyond what a number holds."""
        return math.exp(self.loss) if self.loss < MOST_NATS else math.inf

    def told(self, *, of_text: bool) -> str:
        """Write it for a person. of_text: whether tokens are predicted."""
        perplexity = f", perplexity {self.perplexity:.4g}" if of_text else ""
        right = "" if self.right is None else f", {self.right:.2%} right"
        return f"loss {self.loss:.4f}{perplexity}{right}, of {self.samples:,} samples"


class Memory(Record):
    """Peak memory of ranks."""

    kind: Literal["resident", "allocated"]
    peak_bytes_per_rank: tuple[int, ...]
    prefetch_bytes: int = 0
    """The most that weights gathered ahead of their use took of the peak, on rank 0."""
    cached_blocks: int = 0
    """Blocks whose gathered weights are kept from the forward to the recomputation."""
    cache_bytes: int = 0


class Provenance(Record):
    """Origin of a number."""

    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    environment: dict[str, str]
    modules: tuple[str, ...] = ()
    """Loaded environment modules."""
    clocks_hz: dict[str, float] = {}
    """Least clock of what the ranks of each host compute on, busy at the end of the run, as far as hosts can tell."""
    launcher: str
    bindings: Bindings | None = None
    """Where ranks were bound; None where they didn't meet, and in older results."""
    start: str
    end: str


class Result(Document):
    """Whole result.json.

    Version 1 had no axes, phases and timeline; version 2 no lanes, machine, bound, variants and measured peak;
    version 3 no energy, profile and tuning; version 4 no hosts in a breakdown, and no modules and clocks; version 5 had
    a list for each kind of contest (contest.migrated).
    """

    schema_: Literal["par4d.result"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2, 3, 4, 5, 6] = VERSION
    kind: Literal[
        "train",
        "ablation",
        "pipeline",
        "grids",
        "optimisations",
        "gemm",
        "matmul",
        "memory",
        "latency",
        "flops",
        "layers",
        "collectives",
        "p2p",
        "sample",
    ]
    """train has iterations and summary; ablation, pipeline, grids and optimisations a contest; gemm gemm, matmul
    tuning, memory stream, latency launches, flops counted_flops, layers layers,
    collectives links, p2p transfers, sample images.
    """
    status: Literal["ok", "failed"]
    reason: str | None = None
    diagnosis: Diagnosis | None = Field(default=None, alias="told")
    labels: dict[str, str] = {}
    """The caller's own words: a suite writes system, partition and study."""
    config: dict[str, Any]
    """Every option of the command after defaults were applied, and what only torch settles: threads; widened_by, the
    product that makes weight gradients in the masters' format (none: they are rounded to that of the computation
    first); attention, its kernel; compiled, whether the layers' functions ran compiled.
    """
    ranks: int
    grid: GridText | None = None
    model: Model | None = None
    iterations: tuple[Iteration, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    summary: Summary | None = None
    memory: Memory | None = None
    collectives: tuple[Collective, ...] = ()
    breakdown: Breakdown | None = None
    timeline: Timeline | None = None
    profile: Profile | None = None
    energy: Energy | None = None
    """None where it was not asked for, in a contest, and in older results."""
    loss_scaling: LossScaling | None = None
    contest: Contest | None = None
    tuning: Tuning | None = None
    transport: Transport | None = None
    dtype: str
    gemm: tuple[GemmPoint, ...] = ()
    gemm_modes: tuple[GemmPoint, ...] = ()
    """One size again in every mode, in turns; not in older results."""
    best_flops_per_s: float | None = None
    stream: StreamBandwidth | None = None
    launches: tuple[LaunchTime, ...] = ()
    counted_flops: tuple[CountedStep, ...] = ()
    layers: tuple[LayerCosts, ...] = ()
    links: Links | None = None
    transfers: tuple[Transfer, ...] = ()
    images: ImageSheet | None = None
    provenance: Provenance

    def sides(self, kind: type[AnySide]) -> tuple[AnySide, ...]:
        """Return the sides of a contest of that kind."""
        sides = self.contest.sides if self.contest else ()
        return tuple(side for side in sides if isinstance(side, kind))


class ResultError(UsageError):
    """The file is not a result that this version can read; the message names the file and the key."""


def parse(data: object, where: str) -> Result:
    """Check a decoded JSON document. where: its origin, for errors. Raises ResultError."""
    if isinstance(data, dict) and data.get("version") in range(1, 6):
        data = migrated(data)
    return checked(Result, "result", data, where)


def checked(kind: type[_Kind], what: str, data: object, where: str) -> _Kind:
    """Check a decoded JSON document as a record of that kind, by its schema_ and version; what: the kind, for errors.

    Raises ResultError.
    """
    schema, newest = (kind.model_fields[name].default for name in ("schema_", "version"))
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise ResultError(f"{where} is not a Par4D {what}: its key 'schema' is not {schema!r}.")
    version = data.get("version")
    if isinstance(version, int) and version > newest:
        raise ResultError(
            f"{where} has schema version {version}, but this Par4D reads up to {newest}: update Par4D to read it."
        )
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ResultError(f"{where} is not a valid {what}: {first_problem(error)}") from None


def read(path: Path) -> Result:
    """Read and check one file. Raises ResultError if it is cut short, newer than this code or not a result."""
    try:
        data = json_of(path.read_text())
    except OSError as error:
        raise ResultError(f"{path} can't be read: {error.strerror}.") from None
    except ValueError:
        raise ResultError(
            f"{path} is cut short or is not JSON: write it again by running its test once more."
        ) from None
    return parse(data, str(path))


def write(result: Result, path: Path) -> None:
    """Check and write one file, in one step."""
    write_text(path, Result.model_validate_json(result.to_json()).to_json())
