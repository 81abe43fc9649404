"""Schema of the result of `bench peers`: contests of the engine with other people's parallelism.

Version 1 had one device and number format (processors, fp32), no labels, no status, no paired ratio and no gradient
norms; version 2 no work, no peaks, no memory of each side and no contest that can't be run; version 3 no peers with a
layout or an environment of their own. In version 4 each side could have a transport of its own between ranks of one
host's processors, and version 5 called jobs `measured`. They are read as what they were.
"""

from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from engine.errors import first_line
from engine.files import json_of, write_text
from engine.result import metrics
from engine.result.schema import Memory, Provenance, ResultError, checked
from engine.result.schema.contest import ContestSide, Ratio
from engine.result.schema.machine import Transport
from engine.result.schema.step import GridText
from engine.result.schema.tuning import Tuning
from engine.schema import Document, Record

SCHEMA: Literal["par4d.peers"] = "par4d.peers"
VERSION: Literal[6] = 6

SideName = Literal["ours", "peer"]
SIDES: tuple[SideName, ...] = ("ours", "peer")


class PeerSide(ContestSide):
    """Measurements of one side on one rank."""

    kind: Literal["peer"] = "peer"
    name: str = ""
    """ours or peer; whoever puts both together says which."""
    losses: tuple[float, ...]
    """Of the warm-up steps, like gradient_norms."""
    gradient_norms: tuple[float, ...] = ()
    cpu_s: tuple[tuple[float, ...], ...]
    """Processor seconds of each timed step, by round: of the whole process, threads of the collectives included,
    without waiting. Other work on the machine disturbs them less than elapsed ones.
    """
    peak_bytes: int | None = None
    """The most that the device's allocator held for this side, from before it was built until it had taken its steps
    but the last of the warm-up; on processors of tensors only.
    """
    versions: dict[str, str] = {}
    """Of the packages that it ran with, where those aren't the engine's."""
    without: dict[str, str] = {}
    """Modules that it lacked on this device, each with the settings that need it and were as on processors."""
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
"""Stands for a side that was left out."""


class PeerContest(Record):
    """Both sides of a contest with a peer on one rank of one job, or one of them where the other was left out."""

    base: str = "peer"
    sides: tuple[PeerSide, ...]
    tuning: Tuning | None = None
    """Of ours, where it was tuned."""
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
        """Return the engine's side; NOTHING where it was left out."""
        return self._side("ours")

    @property
    def peer(self) -> PeerSide:
        """Return the peer's side; NOTHING where it was left out."""
        return self._side("peer")

    def _side(self, name: str) -> PeerSide:
        return next((side for side in self.sides if side.name == name), NOTHING)


class Equality(Record):
    """How alike both sides trained before they were timed. steps: compared in each job.

    losses, gradient_norms: the largest relative difference in a step of a job. Losses may differ by up to the
    tolerance, first norms by norm_tolerance; later ones are only reported. In older files one tolerance was for both.
    """

    steps: int
    losses: float
    gradient_norms: float
    tolerance: float
    norm_tolerance: float | None = None


class Setting(Record):
    """Setting of a peer for speed on processors and on GPUs: to one of both, by the command's device.

    needs: a package without which the value is that of processors. source: where the library tells of it.
    """

    name: str
    cpu: str
    cuda: str
    needs: str | None = None
    source: str


class Asked(Record):
    """Contest that was asked for. target: what the paired ratio is to be at most; None where it is only
    reported.

    layout: how the peer splits ranks, where it does so in its own way. does: what of the work it does how.
    settings: what else the peer is set to; older files don't tell. missing: why it can't be run on this machine, and
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
    """Work of one step, all ranks together: tokens, and flops as metrics.rate counts them."""

    tokens: int
    model_flops: int
    hardware_flops: int


class Peaks(Record):
    """Peak flop/s of one device: the vendor's, and what products reach; measured: by the command's own ranks."""

    advertised: float | None = None
    empirical: float | None = None
    measured: bool = False


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
    """Of processes with both models, the most of any job."""
    jobs: tuple[PeerContest, ...]
    """Measurements of rank 0 of each job."""
    load: float
    """Runnable processes of the whole machine as it started, averaged over a minute."""
    apart: bool = False
    """Whether the sides were measured one after the other, which older files tell of the whole command only."""
    road: str = ""
    """Transport of both sides, in version 4: memory, gloo or nccl, or own where ours was memory and the peer's gloo."""

    def unequal(self, version: int, device: str) -> bool:
        """Say whether its sides had different transports, or may have had, as a file of that version tells."""
        return version <= 4 and device == "cpu" and self.ranks > 1 and self.road in ("", "own")


class PeersResult(Document):
    """All contests of one command, and what they ran. They were run in the order in which they were asked for.

    labels are the caller's own words. case is every option as it came out: what was trained, how often it was timed,
    threads of a rank. A failed one has the contests that were run before the reason.
    """

    schema_: Literal["par4d.peers"] = Field(default=SCHEMA, alias="schema")
    version: Literal[1, 2, 3, 4, 5, 6] = VERSION
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
    comparisons: tuple[ContestResult, ...]
    transport: Transport | None = None
    provenance: Provenance


def parse(data: object, where: str) -> PeersResult:
    """Check a decoded JSON document. where names its origin in errors. Raises ResultError."""
    if isinstance(data, dict) and data.get("version") in range(1, 6):
        data = _migrated(data)
    return checked(PeersResult, "contest with peers", data, where)


def _migrated(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result of version 1 to 5 with its jobs as version 6 has them.

    Each was `measured`, with `ours` and `peer`, and ratios that follow from times stood beside.
    """
    found = data.get("comparisons")
    if not isinstance(found, list):
        return data
    return data | {"comparisons": [_with_jobs(one) if isinstance(one, dict) else one for one in found]}


def _with_jobs(one: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in one.items() if key not in ("measured", "round_ratios", "rounds_by_job")}
    jobs = one.get("measured")
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
