"""The result of `bench peers` has contests of the engine with other people's parallelism, and what they measured.

Version 1 had one device and number format (processors, fp32), no labels, no status, no paired ratio and no gradient
norms; version 2 no work, no peaks, no memory of each side and no contest that can't be held; version 3 no peers with a
layout or an environment of their own. In version 4 each side could have a transport of its own between ranks of one
host's processors. They are read as what they were.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from pydantic import Field

from engine.errors import first_line
from engine.files import json_of, write_text
from engine.result import gate, metrics
from engine.result.grid_text import GridText
from engine.result.interval import Interval
from engine.result.matmul import Tuning
from engine.result.ratio import Ratio
from engine.result.schema import Memory, Provenance, ResultError, checked
from engine.result.transport import Transport
from engine.schema import Document, Record

SCHEMA: Literal["par4d.peers"] = "par4d.peers"
VERSION: Literal[5] = 5

SideName = Literal["ours", "peer"]
SIDES: tuple[SideName, ...] = ("ours", "peer")
Verdict = Literal["won", "lost", "undecided"]
Standing = Literal["met", "missed", "undecided"]
FEWEST_JOBS = 2
"""One set of processes happens to be faster or slower for one side as long as it lives, and tells nothing of others.
Two leave a wide interval, as Student's t of one degree of freedom is 12.7; of three jobs it is 4.3, of six 2.6.
"""


class Side(Record):
    """It is what one rank measured of one side. losses, gradient_norms: of the warm-up steps.

    wall_s, cpu_s: elapsed and processor seconds of each timed step, by round. Processor seconds are those of the whole
    process, threads of the collectives included, without waiting; other work on the machine disturbs them less.
    peak_bytes: the most that the device's allocator held for this side, from before it was built until it had taken its
    steps but the last of the warm-up; on processors of tensors only. versions: of the packages that it ran with, where
    those aren't the engine's. without: modules that it lacked on this device, each with the settings that need it and
    were as on processors.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...] = ()
    wall_s: tuple[tuple[float, ...], ...]
    cpu_s: tuple[tuple[float, ...], ...]
    peak_bytes: int | None = None
    versions: dict[str, str] = {}
    without: dict[str, str] = {}
    carried: dict[str, int] = {}
    """Calls of the timed steps by transport, in version 4."""


NOTHING = Side(losses=(), wall_s=(), cpu_s=())
"""It stands for a side that was left out."""


class Measured(Record):
    """It has both sides of a contest on one rank. tuning: of ours, where it was tuned. compiled: whether the functions
    of our layers ran compiled; None where ours was left out, and in older files.
    """

    ours: Side
    peer: Side
    tuning: Tuning | None = None
    compiled: bool | None = None


class Equality(Record):
    """It shows that both sides trained alike before they were timed. steps: compared in each job.

    losses, gradient_norms: the largest relative difference in a step of a job. Losses may differ by up to the
    tolerance, first norms by norm_tolerance; later ones are only reported. In older files one tolerance was for both.
    """

    steps: int
    losses: float
    gradient_norms: float
    tolerance: float
    norm_tolerance: float | None = None


class Setting(Record):
    """A peer is set to this for speed on processors and on GPUs: to one of both, by the command's device.

    needs: a package without which the value is that of processors. source: where the library tells of it.
    """

    name: str
    cpu: str
    cuda: str
    needs: str | None = None
    source: str


class Asked(Record):
    """It is a contest that was asked for. target: what the paired ratio is to be at most; None where it is only
    reported.

    layout: how the peer splits ranks, where it does so in its own way. does: what of the work it does how.
    settings: what else the peer is set to; older files don't tell. missing: why it can't be held on this machine, and
    wasn't. needs: bytes that a rank of ours and of the peer's needs of a device, as planned; older files don't tell.
    """

    peer: str
    peer_is: str
    grid: GridText
    ranks: int
    target: float | None
    layout: str | None = None
    does: str = ""
    settings: tuple[Setting, ...] = ()
    missing: str | None = None
    needs: tuple[int, int] | None = None


class Work(Record):
    """It is the work of one step, all ranks together: tokens, and flops as metrics.rate counts them."""

    tokens: int
    model_flops: int
    hardware_flops: int


class Peaks(Record):
    """Peaks are flop/s of one device: the vendor's, and what products reach; measured: by the command's own ranks."""

    advertised: float | None = None
    empirical: float | None = None
    measured: bool = False


class Compared(Asked):
    """It is one contest that was held.

    ratio: our median step time by the peer's, the median of the jobs; job_ratios: that of each job. round_ratios: of
    each round, job by job; rounds_by_job: the same, a row a job. paired: metrics.paired of them.
    cpu_ratio: as ratio, of processor seconds. *_median_s: over all steps. measured: by rank 0 of each job. memory: of
    processes with both models, the most of any job. load: runnable processes of the whole machine as it started,
    averaged over a minute. apart: whether the sides were measured one
    after the other, which older files tell of the whole command only.
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
    apart: bool = False
    road: str = ""
    """Transport of both sides, in version 4: memory, gloo or nccl, or own where ours was memory and the peer's gloo."""

    def unequal(self, version: int, device: str) -> bool:
        """Say whether its sides had different transports, or may have had, as a file of that version tells."""
        return version <= 4 and device == "cpu" and self.ranks > 1 and self.road in ("", "own")


class PeersResult(Document):
    """It has all contests of one command, and what they ran. They were held in the order in which they were asked for.

    labels are the caller's own words. case is every option as it came out: what was trained, how often it was timed,
    threads of a rank. A failed one has the contests that were held before the reason.
    """

    schema_: Literal["par4d.peers"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2, 3, 4, 5] = VERSION
    status: Literal["ok", "failed"] = "ok"
    reason: str | None = None
    told: Literal["nothing", "symptom", "cause"] | None = None
    """How much the reason of a failed one explains, as in engine.result.schema; older files don't tell."""
    labels: dict[str, str] = {}
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "fp32"
    case: dict[str, Any]
    work: Work | None = None
    peaks: Peaks = Peaks()
    contests: tuple[Asked, ...] = ()
    comparisons: tuple[Compared, ...]
    transport: Transport | None = None
    provenance: Provenance


def parse(data: object, where: str) -> PeersResult:
    """Check a decoded JSON document. where names its origin in errors. Raises ResultError."""
    return checked(PeersResult, "contest with peers", data, where)


def read(path: Path) -> PeersResult:
    """Read and check one file. Raises ResultError."""
    try:
        return parse(json_of(path.read_text()), str(path))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} can't be read: {first_line(error)}.") from None


def write(result: PeersResult, path: Path) -> None:
    """Write one file, in one step."""
    write_text(path, result.to_json())


def rounds(measured: Sequence[Measured]) -> list[list[tuple[float, float]]]:
    """Give the seconds of a step of ours and of the peer's, each the median of its steps in the round; a row of
    rounds a job.
    """
    return [
        [(median(ours), median(peer)) for ours, peer in zip(job.ours.wall_s, job.peer.wall_s, strict=True)]
        for job in measured
    ]


def paired(measured: Sequence[Measured]) -> Ratio:
    """Give the paired ratio of the jobs."""
    return Ratio.of(metrics.paired(rounds(measured)))


def verdict(interval: Interval, jobs: int) -> Verdict:
    """Judge the engine by the interval of its paired ratio: won where all of it is below 1, lost where all is above.

    Anything else is undecided, and so is whatever fewer than FEWEST_JOBS jobs measured.
    """
    shorter, longer = gate.at_most(interval, 1.0), gate.at_least(interval, 1.0)
    if jobs < FEWEST_JOBS or shorter == longer:
        return "undecided"
    return "won" if shorter == "pass" else "lost" if longer == "pass" else "undecided"


def standing(interval: Interval, jobs: int, target: float) -> Standing:
    """Say whether the interval of the paired ratio is at or below the target, above it, or across it.

    Of fewer than FEWEST_JOBS jobs it is undecided.
    """
    words: dict[gate.Outcome, Standing] = {"pass": "met", "fail": "missed", "undecided": "undecided"}
    return words[gate.at_most(interval, target)] if jobs >= FEWEST_JOBS else "undecided"


class Speed(NamedTuple):
    """These are rates of the job; mfu, hfu: of the advertised peak, of_empirical: of the empirical; None without."""

    tokens_per_s: float
    model_flops_per_s: float
    mfu: float | None
    hfu: float | None
    of_empirical: float | None


def speed(work: Work, peaks: Peaks, ranks: int, step_s: float) -> Speed:
    """Give the rates that follow from a side's step time."""
    model, hardware = metrics.rate(work.model_flops, step_s), metrics.rate(work.hardware_flops, step_s)
    advertised, empirical = peaks.advertised, peaks.empirical
    return Speed(
        tokens_per_s=metrics.rate(work.tokens, step_s),
        model_flops_per_s=model,
        mfu=metrics.utilisation(model, ranks, advertised) if advertised else None,
        hfu=metrics.utilisation(hardware, ranks, advertised) if advertised else None,
        of_empirical=metrics.utilisation(hardware, ranks, empirical) if empirical else None,
    )


def peak_bytes(measured: Sequence[Measured]) -> tuple[int | None, int | None]:
    """Give the bytes that ours and the peer's side took, the most of any job; None where it wasn't measured."""
    sides = ([job.ours.peak_bytes for job in measured], [job.peer.peak_bytes for job in measured])
    ours, peer = (max((taken for taken in side if taken is not None), default=None) for side in sides)
    return ours, peer


def difference(job: Measured) -> tuple[float, float]:
    """Give the largest relative difference of losses, and of gradient norms, in a step before those that were timed."""
    losses, _ = metrics.curve_difference(job.ours.losses, job.peer.losses)
    norms, _ = metrics.curve_difference(job.ours.gradient_norms, job.peer.gradient_norms)
    return losses, norms


def steps(side: Side, *, processor: bool = False) -> tuple[float, ...]:
    """Give the seconds of every timed step of a job, elapsed or of the processor."""
    return tuple(chain.from_iterable(side.cpu_s if processor else side.wall_s))
