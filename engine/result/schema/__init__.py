"""This is the one schema of result.json: what a run measured, and everything needed to trace and repeat it.

Read and written only here. A file is replaced in one step, so a reader never sees half of one. Times are in
seconds, memory in bytes, rates per second, utilisations as fractions of one.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from engine.errors import UsageError
from engine.files import json_of, write_text
from engine.result.schema.bench import GemmPoint, ImageSheet, LaunchTime, Links, Stream, Transfer
from engine.result.schema.contest import Contest, TrainingSide, migrated
from engine.result.schema.machine import Bindings, Transport
from engine.result.schema.profile import Profile
from engine.result.schema.step import Breakdown, Collective, Energy, GridText, LossScaling, Timeline
from engine.result.schema.tuning import Tuning
from engine.schema import Document, Record, first_problem

SCHEMA: Literal["par4d.result"] = "par4d.result"
VERSION: Literal[6] = 6

_Kind = TypeVar("_Kind", bound=Record)
Side = TypeVar("Side", bound=TrainingSide)


class Model(Record):
    """It is the network that was trained. family: of architectures; absent means gpt. vocabulary: absent of images."""

    name: str
    family: str | None = None
    layers: int
    hidden: int
    heads: int
    vocabulary: int | None = None
    sequence: int
    parameters: int
    parameters_per_rank: int


class Iteration(Record):
    """It is one training step. loss: mean cross-entropy in nats per token over the global batch. profiled: a profile
    was taken of it, so that it took longer. loss_scale: of fp16. skipped: a gradient overflowed at that scale, so that
    there is no norm and no step was taken.
    """

    index: int
    time_s: float
    loss: float
    grad_norm: float | None
    learning_rate: float
    warmup: bool
    profiled: bool = False
    loss_scale: float | None = None
    skipped: bool = False

    @property
    def counted(self) -> bool:
        """Say whether the summary is of it, among others."""
        return not self.warmup and not self.profiled


class Summary(Record):
    """These are figures over the counted iterations (all but the warm-up, axonn-sc24 VI-C, and those that were
    profiled).

    hardware_flops_per_s counts the recomputation of activation checkpointing where it was on, model_flops_per_s
    never does; both are of the whole job. hfu and mfu are those rates over the job's advertised peak, of_empirical the
    first over the empirical one; absent where no peak was given or measured. empirical_peak_measured: by the job's own
    ranks at once, instead of given. repeated_flops_per_s is what Algorithm 1 runs Gy times over, and in neither rate.
    samples_per_s: rows of the batch, such as sequences or images.
    """

    counted_iterations: int
    time_per_iteration_s: float
    median_time_s: float
    tokens_per_s: float
    samples_per_s: float | None = None
    hardware_flops_per_s: float
    model_flops_per_s: float
    repeated_flops_per_s: float = 0.0
    peak_flops_per_device: float | None = None
    hfu: float | None = None
    mfu: float | None = None
    empirical_peak_flops_per_device: float | None = None
    empirical_peak_measured: bool = False
    of_empirical: float | None = None


class Memory(Record):
    """These are the peaks of ranks, in rank order. kind: what was read, "resident" (host) or "allocated" (device).

    Of the peak, on rank 0: prefetch_bytes, the most that weights gathered ahead of their use took, and cache_bytes,
    the gathered weights of cached_blocks blocks kept from the forward to the recomputation.
    """

    kind: Literal["resident", "allocated"]
    peak_bytes_per_rank: tuple[int, ...]
    prefetch_bytes: int = 0
    cached_blocks: int = 0
    cache_bytes: int = 0


class Provenance(Record):
    """It says where a number comes from.

    modules: of the environment, as they were loaded. clocks_hz: by host, of what its ranks compute on, busy at the end
    of the run, the least of them; hosts that can't tell are left out.
    """

    git_commit: str | None
    git_dirty: bool | None
    versions: dict[str, str]
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    environment: dict[str, str]
    modules: tuple[str, ...] = ()
    clocks_hz: dict[str, float] = {}
    launcher: str
    bindings: Bindings | None = None
    """Where ranks were bound; absent where they didn't meet, and in results that are older than it."""
    start: str
    end: str


class Result(Document):
    """It is a whole result.json. kind "train" carries iterations and summary, "ablation", "pipeline" and "grids"
    a contest, "gemm" gemm, "matmul" tuning, "memory" stream, "latency" launches, "collectives" links,
    "p2p" transfers, "sample" images.

    labels are the caller's own words (a suite writes system, partition and study), config is every option of the
    command after defaults were applied, and what only torch settles: threads; widened_by, the product that makes weight
    gradients in the masters' format (none: they are rounded to that of the computation first); attention, its kernel;
    compiled, whether the layers' functions ran compiled.
    Rates of a device are those of one of the ranks, which measured at once.
    gemm_modes: one size again in every mode, in turns; absent in results that are older than it.
    told: how far the reason of a failed run goes: nothing (it ended before a rank could say why), a symptom (a rank
    lost others, it isn't known why) or the cause.
    energy: absent where it was not asked for, as in an ablation, and in results that are older than it. loss_scaling:
    of fp16.
    Version 1 had no axes, phases and timeline; version 2 no lanes, machine, bound, variants and measured peak;
    version 3 no energy, profile and tuning; version 4 no hosts in a breakdown, and no modules and clocks; version 5 had
    a list for each kind of contest (contest.migrated).
    """

    schema_: Literal["par4d.result"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2, 3, 4, 5, 6] = VERSION
    kind: Literal[
        "train", "ablation", "pipeline", "grids", "gemm", "matmul", "memory", "latency", "collectives", "p2p", "sample"
    ]
    status: Literal["ok", "failed"]
    reason: str | None = None
    told: Literal["nothing", "symptom", "cause"] | None = None
    labels: dict[str, str] = {}
    config: dict[str, Any]
    ranks: int
    grid: GridText | None = None
    model: Model | None = None
    iterations: tuple[Iteration, ...] = ()
    summary: Summary | None = None
    memory: Memory | None = None
    collectives: tuple[Collective, ...] = ()
    breakdown: Breakdown | None = None
    timeline: Timeline | None = None
    profile: Profile | None = None
    energy: Energy | None = None
    loss_scaling: LossScaling | None = None
    contest: Contest | None = None
    tuning: Tuning | None = None
    transport: Transport | None = None
    dtype: str
    gemm: tuple[GemmPoint, ...] = ()
    gemm_modes: tuple[GemmPoint, ...] = ()
    best_flops_per_s: float | None = None
    stream: Stream | None = None
    launches: tuple[LaunchTime, ...] = ()
    links: Links | None = None
    transfers: tuple[Transfer, ...] = ()
    images: ImageSheet | None = None
    provenance: Provenance

    def sides(self, kind: type[Side]) -> tuple[Side, ...]:
        """Return the sides of a contest of that kind; none where another kind took turns, or nothing did."""
        sides = self.contest.sides if self.contest else ()
        return tuple(side for side in sides if isinstance(side, kind))


class ResultError(UsageError):
    """The file is not a result that this version can read; the message names the file and the key."""


def parse(data: object, where: str) -> Result:
    """Check a decoded JSON document. where names its origin in errors. Raises ResultError."""
    if isinstance(data, dict) and data.get("version") in range(1, 6):
        data = migrated(data)
    return checked(Result, "result", data, where)


def checked(kind: type[_Kind], what: str, data: object, where: str) -> _Kind:
    """Check a decoded JSON document as a record of that kind, whose schema_ and version say what is read; what: in
    words.

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
