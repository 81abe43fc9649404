"""The engine against its peers on this machine: contests one after the other, their statistics, table and file."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from pydantic import ConfigDict, Field

from engine.batch import Batch
from engine.comm.launch import Launch
from engine.errors import UsageError, nearest
from engine.files import write_text
from engine.grid import Grid
from engine.peers.contest import CONTESTS, Case, Contest, Measured
from engine.peers.ranks import join_ranks, run_ranks
from engine.planning.fit import check_grid
from engine.result import provenance
from engine.result.schema import Provenance
from engine.schema import Record

log = logging.getLogger(__name__)


class Comparison(Record):
    """One contest. ratio: our median step time by the peer's, the median of the jobs, to be at most the target.

    job_ratios: that of each job. cpu_ratio: as ratio, of processor seconds. round_ratios: of each round, job by job.
    *_median_s: over all steps. measured: by rank 0 of each job. load: runnable processes of the whole machine as it
    started, averaged over a minute.
    """

    peer: str
    peer_is: str
    grid: str
    ranks: int
    target: float | None
    ratio: float
    job_ratios: tuple[float, ...]
    round_ratios: tuple[float, ...]
    cpu_ratio: float
    ours_median_s: float
    peer_median_s: float
    measured: tuple[Measured, ...]
    load: float


class Report(Record):
    """All contests of one command, and what they ran."""

    schema_: Literal["par4d.peers"] = Field(default="par4d.peers", alias="schema")
    version: Literal[1] = 1
    case: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    provenance: Provenance

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)


def chosen(names: Sequence[str], grids: Sequence[Grid] = ()) -> list[Contest]:
    """The contests of those names, or every one for "all", each on each of the grids or on its own.

    Raises UsageError for an unknown name, or a grid that one of them is no match for.
    """
    for name in names:
        if name not in (*CONTESTS, "all"):
            raise UsageError(f"No peer is called {name!r}: {nearest(name, [*CONTESTS, 'all'])}")
    contests = list(CONTESTS.values()) if "all" in names else [CONTESTS[name] for name in names]
    return [contest.on(grid) for contest in contests for grid in grids or (contest.grid,)]


def check_contests(case: Case, contests: Sequence[Contest], ranks: int) -> None:
    """Raises UsageError for whatever can't be run, before anything is. ranks: of the launcher, 1 without one."""
    numbers = {"--jobs": case.jobs, "--rounds": case.rounds, "--steps-per-round": case.steps, "--threads": case.threads}
    for option, number in numbers.items():
        if number < 1:
            raise UsageError(f"{option} is at least 1, but {number} was given.")
    if case.timeout_s <= 0:
        raise UsageError(f"--timeout is a positive number of seconds, but {case.timeout_s:g} was given.")
    for contest in contests:
        contest.check(case.model)
        check_grid(case.model, contest.grid, Batch(case.sequences))
        if ranks > 1 and contest.grid.size != ranks:
            raise UsageError(
                f"{ranks} ranks were started, but the contest with {contest.name} is on grid {contest.grid} of "
                f"{contest.grid.size}: name one of {ranks} by --grid."
            )


def compare(contests: Sequence[Contest], case: Case, out: Path, launch: Launch) -> Report | None:
    """Run the contests and write them to out, each as it ends; None on ranks that write nothing.

    The ranks are those of the launcher, or without one started here. Raises UsageError or RunError.
    """
    check_contests(case, contests, launch.world_size)
    start, found, report = provenance.now(), [], None
    joined = join_ranks(launch, contests, case) if launch.world_size > 1 else None
    for contest in contests:
        load = os.getloadavg()[0]
        jobs = [run_ranks(contest, case) for _ in range(case.jobs)] if joined is None else [next(joined)]
        if launch.rank:
            continue
        found.append(comparison(contest, jobs, load))
        log.info("%s on %s: ratio %.3f", contest.name, contest.grid, found[-1].ratio)
        report = Report(
            case=asdict(case),
            comparisons=tuple(found),
            provenance=provenance.collect(
                start=start,
                launcher="spawn" if joined is None else launch.launcher,
                devices=[provenance.device_name(torch.device("cpu"))],
            ),
        )
        write_text(out, report.model_dump_json(by_alias=True, indent=1) + "\n")
    if joined is not None:
        next(joined, None)
    return report


def comparison(contest: Contest, jobs: Sequence[Measured], load: float) -> Comparison:
    """The statistics of what rank 0 of each job measured."""
    job_ratios = tuple(_median(job.ours.wall_s) / _median(job.peer.wall_s) for job in jobs)
    rounds = [pair for job in jobs for pair in zip(job.ours.wall_s, job.peer.wall_s, strict=True)]
    return Comparison(
        peer=contest.name,
        peer_is=contest.peer,
        grid=str(contest.grid),
        ranks=contest.grid.size,
        target=contest.target,
        ratio=median(job_ratios),
        job_ratios=job_ratios,
        round_ratios=tuple(median(ours) / median(peer) for ours, peer in rounds),
        cpu_ratio=median(_median(job.ours.cpu_s) / _median(job.peer.cpu_s) for job in jobs),
        ours_median_s=_median(ours for ours, _ in rounds),
        peer_median_s=_median(peer for _, peer in rounds),
        measured=tuple(jobs),
        load=load,
    )


def _median(rounds: Iterable[Iterable[float]]) -> float:
    return median(chain.from_iterable(rounds))


def table(report: Report) -> str:
    """For a person: one line a contest."""
    lines = [
        f"{'peer':<16}{'grid':<9}{'ours s':>7}{'peer s':>9}{'ratio':>7}{'target':>8}  {'jobs':<16}{'rounds':<16}cpu"
    ]
    for c in report.comparisons:
        target = "-" if c.target is None else f"{c.target:.2f}"
        lines.append(
            f"{c.peer:<16}{c.grid:<9}{c.ours_median_s:7.4f}{c.peer_median_s:9.4f}{c.ratio:7.3f}{target:>8}"
            f"  {_span(c.job_ratios):<16}{_span(c.round_ratios):<16}{c.cpu_ratio:.3f}"
        )
    return "\n".join(lines) + "\n"


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.3f}..{max(ratios):.3f}"
