"""The result of `bench peers`: contests of the engine with other people's parallelism, and whatever they measured.

Version 1 had one device and number format (processors, fp32), no labels, no status, no paired ratio and no gradient
norms; it is read as what it was.
"""

from collections.abc import Sequence
from itertools import chain
from statistics import median
from typing import Any, Literal

from pydantic import ConfigDict, Field

from engine.result import metrics
from engine.result.schema import GridText, Memory, Provenance, Ratio, Transport, checked
from engine.schema import Record

SCHEMA: Literal["par4d.peers"] = "par4d.peers"
VERSION: Literal[2] = 2


class Side(Record):
    """What one rank measured of one side. losses, gradient_norms: of the warm-up steps.

    wall_s, cpu_s: elapsed and processor seconds of each timed step, by round. Processor seconds are those of the whole
    process, threads of the collectives included, without waiting; other work on the machine disturbs them less.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...] = ()
    wall_s: tuple[tuple[float, ...], ...]
    cpu_s: tuple[tuple[float, ...], ...]


class Measured(Record):
    """Both sides of a contest on one rank."""

    ours: Side
    peer: Side


class Equality(Record):
    """That both sides trained alike before they were timed. steps: compared in each job.

    losses, gradient_norms: the largest relative difference in a step of a job; it may be up to the tolerance.
    """

    steps: int
    losses: float
    gradient_norms: float
    tolerance: float


class Asked(Record):
    """A contest that was asked for. target: what `ratio` is to be at most; None where it is only told."""

    peer: str
    peer_is: str
    grid: GridText
    ranks: int
    target: float | None


class Comparison(Asked):
    """One contest that was held.

    ratio: our median step time by the peer's, the median of the jobs; job_ratios: that of each job. round_ratios: of
    each round, job by job; rounds_by_job: the same, a row a job. paired: metrics.paired over jobs and rounds.
    cpu_ratio: as ratio, of processor seconds. *_median_s: over all steps. measured: by rank 0 of each job. memory: of
    processes with both models, the most of any job. load: runnable processes of the whole machine as it started,
    averaged over a minute.
    """

    ratio: float
    job_ratios: tuple[float, ...]
    round_ratios: tuple[float, ...]
    rounds_by_job: tuple[tuple[float, ...], ...] = ()
    paired: Ratio | None = None
    cpu_ratio: float
    ours_median_s: float
    peer_median_s: float
    equality: Equality | None = None
    memory: Memory | None = None
    measured: tuple[Measured, ...]
    load: float


class PeersResult(Record):
    """All contests of one command, and what they ran. They are held in the order in which they were asked for.

    labels are the caller's own words. case is every option as it came out: what was trained, how often it was timed,
    threads of a rank. A failed one has the contests that were held before the reason.
    """

    schema_: Literal["par4d.peers"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2] = VERSION
    status: Literal["ok", "failed"] = "ok"
    reason: str | None = None
    labels: dict[str, str] = {}
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "fp32"
    case: dict[str, Any]
    contests: tuple[Asked, ...] = ()
    comparisons: tuple[Comparison, ...]
    transport: Transport | None = None
    provenance: Provenance

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)

    def to_json(self) -> str:
        """The text of the file."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def parse(data: object, where: str) -> PeersResult:
    """Check a decoded JSON document. where names its origin in errors. Raises ResultError."""
    return checked(PeersResult, "contest with peers", data, where)


def rounds(measured: Sequence[Measured]) -> list[list[tuple[float, float]]]:
    """Seconds of a step of ours and of the peer's, each the median of its steps in the round; a row of rounds a job."""
    return [
        [(median(ours), median(peer)) for ours, peer in zip(job.ours.wall_s, job.peer.wall_s, strict=True)]
        for job in measured
    ]


def paired(measured: Sequence[Measured]) -> Ratio:
    """The paired ratio over jobs and rounds."""
    return Ratio(**metrics.paired(rounds(measured))._asdict())


def difference(job: Measured) -> tuple[float, float]:
    """The largest relative difference of losses, and of gradient norms, in a step before those that were timed."""
    losses, _ = metrics.curve_difference(job.ours.losses, job.peer.losses)
    norms, _ = metrics.curve_difference(job.ours.gradient_norms, job.peer.gradient_norms)
    return losses, norms


def steps(side: Side, *, processor: bool = False) -> tuple[float, ...]:
    """Seconds of every timed step of a job, elapsed or of the processor."""
    return tuple(chain.from_iterable(side.cpu_s if processor else side.wall_s))
