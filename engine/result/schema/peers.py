"""Schema of the result of `bench peers`: contests of the engine with other people's parallelism.

Version 1 had one device and number format (processors, fp32), no labels, no status, no paired ratio and no gradient
norms; version 2 no work, no peaks, no memory of each side and no contest that can't be run; version 3 no peers with a
layout or an environment of their own. In version 4 each side could have a transport of its own between ranks of one
host's processors, and version 5 called jobs `measured`.
"""

from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from engine.errors import first_line
from engine.files import json_of, write_text
from engine.result import metrics
from engine.result.schema import Diagnosis, Memory, Provenance, ResultError, checked
from engine.result.schema.contest import ContestSide, Ratio
from engine.result.schema.machine import Transport
from engine.result.schema.profile import StepParts
from engine.result.schema.step import GridText
from engine.result.schema.tuning import Tuning
from engine.schema import Document, Record

SCHEMA: Literal["par4d.peers"] = "par4d.peers"
VERSION: Literal[6] = 6

SideName = Literal["ours", "peer"]
SIDES: tuple[SideName, ...] = ("ours", "peer")


PARTS = ("step", "compute", "work", "rest", "hidden", "exposed")
"""Figures of StepParts, each in seconds under its name with _s."""


class PeerSide(ContestSide):
    """Measurements of one side on one rank."""

    kind: Literal["peer"] = "peer"
    name: str = ""
    """ours or peer, once both are put together."""
    losses: tuple[float, ...]
    """Losses of the warm-up steps, like gradient_norms."""
    gradient_norms: tuple[float, ...] = ()
    cpu_s: tuple[tuple[float, ...], ...]
    """Processor seconds of each timed step, by round: of the whole process, threads of the collectives included,
    without waiting. Other work on the machine disturbs them less than elapsed ones.
    """
    peak_bytes: int | None = None
    """The most that the device's allocator held for this side, from before it was built until it had taken its steps
    but the last of the warm-up; on processors of tensors only.
    """
    built_bytes: tuple[int, ...] = ()
    """Growth of each rank's most host memory (VmHWM) from its imports until it was built, of external peers on
    Linux.
    """
    shard_bytes: tuple[int, ...] = ()
    """Bytes that each rank held by then: weights, masters, buffers of gradients and moments, as far as they were there;
    of external peers that tell it.
    """
    versions: dict[str, str] = {}
    """Versions of its packages, where those aren't the engine's; of a side that is a commit of the engine its name
    ("engine"), with nodes and a digest of its first batch ("data").
    """
    without: dict[str, str] = {}
    """Modules that it lacked on this device, each with the settings that need it and were as on processors."""
    parts: StepParts | None = None
    """Parts of a further step, behind the rounds, where that was asked for (--breakdown)."""
    unparted: str = ""
    """Why it has none though they were asked for, one sentence."""
    carried: dict[str, int] = {}
    """Calls of the timed steps by transport, in version 4."""

    @model_validator(mode="before")
    @classmethod
    def _migrated(cls, data: object) -> object:
        """Read rounds_s under the name that it had in files up to version 5, and that older commits give it."""
        if isinstance(data, dict) and "wall_s" in data:
            data = dict(data)
            data.setdefault("rounds_s", data.pop("wall_s"))
        return data


NOTHING = PeerSide(losses=(), rounds_s=(), cpu_s=())
"""Side that was left out."""


class PeerContest(Record):
    """Both sides of a contest with a peer on one rank of one job, or one of them where the other was left out."""

    base: str = "peer"
    sides: tuple[PeerSide, ...]
    tuning: Tuning | None = None
    """Tuning of ours."""
    compiled: bool | None = None
    """Whether the functions of our layers ran compiled; None where ours was left out, and in older files."""

    @classmethod
    def of(
        cls,
        ours: PeerSide = NOTHING,
        peer: PeerSide = NOTHING,
        tuning: Tuning | None = None,
        compiled: bool | None = None,
    ) -> Self:
        """Put the sides together."""
        ratio = None
        if ours.rounds_s and len(ours.rounds_s) == len(peer.rounds_s):
            ratio = Ratio.of(metrics.paired([pairs(ours, peer)]))
        named = [("ours", ours, {"over_base": ratio}), ("peer", peer, {})]
        sides = [side.model_copy(update={"name": name} | own) for name, side, own in named if side is not NOTHING]
        return cls(sides=tuple(sides), tuning=tuning, compiled=compiled)

    @property
    def ours(self) -> PeerSide:
        """The engine's side; NOTHING where it was left out."""
        return self._side("ours")

    @property
    def peer(self) -> PeerSide:
        """The peer's side; NOTHING where it was left out."""
        return self._side("peer")

    def _side(self, name: SideName) -> PeerSide:
        return next((side for side in self.sides if side.name == name), NOTHING)


class Equality(Record):
    """Agreement of both sides' training before they were timed."""

    steps: int
    """Steps that are compared in each job."""
    losses: float
    """Largest relative difference in a step of a job, like gradient_norms."""
    gradient_norms: float
    """Differences that are only reported, but for the first step's."""
    tolerance: float
    """Limit of losses; in older files that of norms too."""
    norm_tolerance: float | None = None
    """Limit of first norms."""


class Setting(Record):
    """Setting of a peer for speed on processors or on GPUs, by the command's device."""

    name: str
    cpu: str
    cuda: str
    needs: str | None = None
    """Package without which the value is that of processors."""
    source: str
    """Where the library documents it."""


class Asked(Record):
    """Contest that was asked for."""

    peer: str
    peer_is: str
    grid: GridText
    ranks: int
    target: float | None
    """Limit of the paired ratio; None where it is only reported."""
    layout: str | None = None
    """How the peer splits ranks in its own way."""
    does: str = ""
    """Parts of the work, and how it does them."""
    settings: tuple[Setting, ...] = ()
    """Other settings of the peer; not in older files."""
    missing: str | None = None
    """Why it can't be run on this machine, and wasn't."""
    needs: tuple[int, int] | None = None
    """Planned bytes of a device that a rank of ours and of the peer's needs; not in older files."""


class Work(Record):
    """Work of one step of all ranks; flops as metrics.rate counts them."""

    tokens: int
    model_flops: int
    hardware_flops: int


class Peaks(Record):
    """Peak flop/s of one device."""

    advertised: float | None = None
    empirical: float | None = None
    measured: bool = False
    """Whether the command's own ranks measured the empirical one."""


class ContestResult(Asked):
    """Contest that was run."""

    ratio: float
    """Our median step time by the peer's, the median of the jobs."""
    job_ratios: tuple[float, ...]
    """Ratio of each job."""
    paired: Ratio | None = None
    """metrics.paired of all rounds."""
    cpu_ratio: float
    """As ratio, of processor seconds."""
    ours_median_s: float
    """Over all steps, like peer_median_s."""
    peer_median_s: float
    equality: Equality | None = None
    memory: Memory | None = None
    """Memory of processes with both models, the most of any job."""
    jobs: tuple[PeerContest, ...]
    """Measurements of rank 0 of each job."""
    load: float
    """Runnable processes of the whole machine as it started, averaged over a minute."""
    apart: bool = False
    """Whether the sides were measured one after the other; in older files the whole command was or wasn't."""
    transport: str = Field(default="", alias="road")
    """Transport of both sides, in version 4: memory, gloo or nccl, or own where ours was memory and the peer's gloo."""

    def unequal(self, version: int, device: str) -> bool:
        """Return whether its sides had different transports, or may have had, by the version of the file."""
        return version <= 4 and device == "cpu" and self.ranks > 1 and self.transport in ("", "own")


class PeersResult(Document):
    """Contests of one command, in the order in which they were asked for; of a failed one those that were run."""

    schema_: Literal["par4d.peers"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2, 3, 4, 5, 6] = VERSION
    status: Literal["ok", "failed"] = "ok"
    reason: str | None = None
    diagnosis: Diagnosis | None = Field(default=None, alias="told")
    labels: dict[str, str] = {}
    """The caller's own words."""
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "fp32"
    case: dict[str, Any]
    """Every option after defaults were applied: what was trained, how often it was timed, threads of a rank."""
    work: Work | None = None
    peaks: Peaks = Peaks()
    contests: tuple[Asked, ...] = ()
    comparisons: tuple[ContestResult, ...]
    transport: Transport | None = None
    provenance: Provenance


def parse(data: object, where: str) -> PeersResult:
    """Check a decoded JSON document. where: its origin, for errors. Raises ResultError."""
    if isinstance(data, dict) and data.get("version") in range(1, 6):
        data = _migrated(data)
    return checked(PeersResult, "contest with peers", data, where)


def _migrated(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result of version 1 to 5 with its jobs as version 6 has them.

    Each was `measured`, with `ours` and `peer`, and ratios that follow from times stood beside.
    """
    contests = data.get("comparisons")
    if not isinstance(contests, list):
        return data
    return data | {"comparisons": [_with_jobs(one) if isinstance(one, dict) else one for one in contests]}


def _with_jobs(contest: dict[str, Any]) -> dict[str, Any]:
    gone = ("measured", "round_ratios", "rounds_by_job")
    kept = {key: value for key, value in contest.items() if key not in gone}
    jobs = contest.get("measured")
    return kept | {"jobs": [_with_sides(job) if isinstance(job, dict) else job for job in jobs]} if jobs else kept


def _with_sides(job: dict[str, Any]) -> dict[str, Any]:
    named = {name: job[name] for name in SIDES if isinstance(job.get(name), dict)}
    rest = {key: value for key, value in job.items() if key not in named}
    return rest | {"base": "peer", "sides": [{"name": name, **side} for name, side in named.items()]}


def read(path: Path) -> PeersResult:
    """Read and check one file. Raises ResultError."""
    try:
        return parse(json_of(path.read_text()), str(path))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} can't be read: {first_line(error)}.") from None


def write(result: PeersResult, path: Path) -> None:
    """Write one file, in one step."""
    write_text(path, result.to_json())


def pairs(ours: PeerSide, peer: PeerSide) -> list[tuple[float, float]]:
    return [(median(mine), median(theirs)) for mine, theirs in zip(ours.rounds_s, peer.rounds_s, strict=True)]
