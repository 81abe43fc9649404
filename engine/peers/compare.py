"""Comparisons of the engine with its peers on this machine, one after the other: statistics, table and file.

A command that starts its ranks on processors doesn't load torch, which takes longer than a short comparison.
"""

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Literal

from engine.comm.launch import Launch, choose_device
from engine.errors import UsageError, nearest
from engine.footprint.fit import check_grid
from engine.grid import Grid
from engine.output import columns
from engine.peers.apart import order_in_a_job, put_together
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.layout import PeerLayout, check_split
from engine.peers.memory import Room, SideBytes, choose_apart, room_here, side_bytes
from engine.peers.ranks import Job, run_ranks, take_part
from engine.peers.registry import COMPARISONS, OWN_COMPARISON, another_commit, environment_lack
from engine.peers.result_writer import ResultWriter, asked_fields
from engine.result.judges.peers import (
    FEWEST_JOBS,
    MET,
    WON,
    difference,
    paired,
    parts,
    round_ratios,
    standing,
    steps,
    verdict,
)
from engine.result.metrics import ratio_of_medians
from engine.result.schema import Memory
from engine.result.schema.peers import PARTS, SIDES, Asked, ContestResult, Equality, PeersResult
from engine.training.equality import TOLERANCES, Tolerance
from engine.training_record import FIRST_LOSS_SCALE, LEAST_LOSS_SCALE, MOST_LOSS_SCALE

DeviceKind = Literal["cpu", "cuda"]
ONE_JOB = "One job decides nothing, as processes differ: take three to six, by --jobs or by starting this again."

log = logging.getLogger(__name__)


def choose_comparisons(
    names: Sequence[str], grids: Sequence[Grid] = (), layouts: Sequence[PeerLayout] = (), checkout: Path | None = None
) -> list[Comparison]:
    """Choose the comparisons of those names, or every one for "all", each on each of the grids or on its own; in each
    layout, of those that have one. checkout: of another commit of the engine, which is one more.

    Raises UsageError for an unknown name, a grid or a layout that one of them is no match for, or a named one whose
    environment, or whose checkout, isn't there.
    """
    known = {**COMPARISONS, OWN_COMPARISON.name: OWN_COMPARISON}
    for name in names:
        if name not in (*known, "all"):
            raise UsageError(f"No peer is called {name!r}: {nearest(name, [*known, 'all'])}")
    comparisons = list(COMPARISONS.values()) if "all" in names else [known[name] for name in names]
    if "all" not in names:
        for comparison in comparisons:
            if reason := environment_lack(comparison.library):
                raise UsageError(reason)
    more = [another_commit(checkout).with_grid(grid) for grid in grids or (Grid(),)] if checkout else []
    if not layouts:
        return [comparison.with_grid(grid) for comparison in comparisons for grid in grids or (comparison.grid,)] + more
    laid_out = [
        comparison.with_layout(layout, grid)
        for comparison in comparisons
        for layout in layouts
        for grid in grids or (Grid(x=layout.size),)
    ]
    return laid_out + more


def choose_device_kind(name: str, local_rank: int) -> DeviceKind:
    """Decide for --device auto, cpu or cuda; check_devices asks whether a GPU is there."""
    if name != "auto":
        return "cuda" if name == "cuda" else "cpu"
    return "cuda" if choose_device(name, local_rank).type == "cuda" else "cpu"


def check_devices(comparisons: Sequence[Comparison], device: DeviceKind, ranks: int, local_rank: int = 0) -> None:
    """Raise UsageError if there is no GPU for these comparisons, or if ranks that are started here would have to share
    one, which NCCL can't.
    """
    if device == "cpu" or not comparisons:
        return
    import torch

    choose_device(device, local_rank)
    for comparison in comparisons:
        if ranks == 1 and comparison.grid.size > torch.cuda.device_count():
            raise UsageError(
                f"The comparison with {comparison.name} on grid {comparison.grid} takes {comparison.grid.size} GPUs, "
                f"but {torch.cuda.device_count()} can be seen here: take --device cpu, a smaller --grid, or a launcher."
            )


def check_comparisons(case: Case, comparisons: Sequence[Comparison], ranks: int) -> None:
    """Raise UsageError for whatever can't be run, before anything is. ranks: of the launcher, 1 without one."""
    for name in ("jobs", "rounds", "steps", "warmup", "threads", "micro_batch", "peer_micro_batch", "devices_per_node"):
        number = case.batch.micro if name == "micro_batch" else getattr(case, name)
        if number is not None and number < 1:
            raise UsageError(f"{_option(name)} is at least 1, but {number} was given.")
    units = {"peak_flops": "flop/s", "empirical_peak_flops": "flop/s", "device_memory": "bytes", "node_memory": "bytes"}
    for name, unit in units.items():
        number = getattr(case, name)
        if number is not None and not 0 < number < math.inf:
            raise UsageError(f"{_option(name)} is a positive number of {unit}, but {number:g} was given.")
    if not LEAST_LOSS_SCALE <= case.loss_scale <= MOST_LOSS_SCALE:
        raise UsageError(
            f"--loss-scale is from {LEAST_LOSS_SCALE:g} to {MOST_LOSS_SCALE:g}, but {case.loss_scale:g} was given."
        )
    if case.loss_scale != FIRST_LOSS_SCALE and case.precision != "fp16":
        raise UsageError(
            f"--loss-scale {case.loss_scale:g} is for --precision fp16, but it is {case.precision}: leave one out."
        )
    if case.autocast and case.precision != "bf16":
        raise UsageError(f"--autocast is for --precision bf16, but it is {case.precision}: leave one out.")
    for comparison in comparisons:
        comparison.check(case.model)
        if isinstance(comparison.layout, Grid):
            check_split(case.model, comparison.layout, case.peer_batch)
        elif comparison.layout is not None and comparison.supports(case.model):
            comparison.layout.for_batch(case.peer_batch).check(case.model, case.batch.sequences)
        check_grid(case.model, comparison.grid, case.batch)
        case.check_mode(comparison.grid)
        if ranks > 1 and comparison.grid.size != ranks:
            raise UsageError(
                f"{ranks} ranks were started, but the comparison with {comparison.name} is on grid {comparison.grid} "
                f"of {comparison.grid.size}: name one of {ranks} by --grid."
            )


def _option(name: str) -> str:
    return "--steps-per-round" if name == "steps" else f"--{name.replace('_', '-')}"


def compare(
    comparisons: Sequence[Comparison],
    case: Case,
    out: Path,
    launch: Launch,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> PeersResult | None:
    """Run the comparisons and write them to out, each as it ends; None on ranks that write nothing.

    The ranks are those of the launcher, or without one started here, where none are for what doesn't fit. Raises
    UsageError before anything is written, or RunError, whose sentence the file has then.
    """
    device = choose_device_kind(case.device, launch.local_rank)
    check_comparisons(case, comparisons, launch.world_size)
    if launch.world_size > 1:
        case, room = replace(case, jobs=1), None  # the processes are the launcher's, and agree on the room
    else:
        room = room_here(case, device)
        case = replace(case, device_memory=room.device_memory)
    ready = [_prepare(comparison, case, room) for comparison in comparisons]
    here = [comparison for comparison, one in zip(comparisons, ready, strict=True) if not isinstance(one, Unavailable)]
    check_devices(here, device, launch.world_size, launch.local_rank)
    writer, result = ResultWriter(case, device, comparisons, dict(labels), launch, out), None
    writer.begin()
    joined = take_part(launch, here, case, reporter=writer) if launch.world_size > 1 else None
    measure_peak = case.measure_peak
    for comparison, one in zip(comparisons, ready, strict=True):
        load, writer.comparison = os.getloadavg()[0], comparison.name
        try:
            if isinstance(one, Unavailable):
                raise one
            settings = replace(one, measure_peak=measure_peak)
            jobs = (
                [_next(joined)] if joined else [_run_job(comparison, settings, number) for number in range(case.jobs)]
            )
        except Unavailable as lacking:
            if launch.rank == 0:
                log.info("%s is skipped: %s", comparison.name, lacking)
                result = writer.missing(comparison, str(lacking))
            continue
        except Exception as error:
            writer.report(error, logged=joined is not None)
            raise
        if launch.rank:
            continue
        found = summarise(comparison, jobs, TOLERANCES[case.precision], load, side_bytes(comparison, case, device))
        log.info("%s on %s: paired ratio %s", comparison.name, comparison.grid, found.paired)
        result = writer.add(found, jobs)
        measure_peak = False  # once is enough
    if joined is not None:
        next(joined, None)
    writer.end()
    return result


def _prepare(comparison: Comparison, case: Case, room: Room | None) -> Case | Unavailable:
    """Return the case with what memory decides, where the room is known; or why the comparison can't be run."""
    if reason := environment_lack(comparison.library):
        return Unavailable(reason)
    recompute = case.checkpoint_group(comparison.grid)
    reason = comparison.lacking(
        case.model, recompute=recompute, own=case.own, widens=case.widens, precision=case.precision
    )
    if reason:
        return Unavailable(reason)
    try:
        return case if room is None else choose_apart(comparison, case, room)
    except Unavailable as lacking:
        return lacking


def _next(joined: Iterator[Job | Unavailable]) -> Job:
    job = next(joined)
    if isinstance(job, Unavailable):
        raise job
    return job


def _run_job(comparison: Comparison, case: Case, number: int) -> Job:
    """Run the job of that number, counted from 0; only the first one measures the peak of matrix products.

    Of sides that are apart, each goes first in every other job. Raises RunError, Unavailable.
    """
    case = replace(case, measure_peak=case.measure_peak and number == 0)
    if not case.apart:
        return run_ranks(comparison, case)
    halves = {
        name: run_ranks(comparison, replace(case, measure_peak=case.measure_peak and name == "ours"), (name,))
        for name in order_in_a_job(number)
    }
    ours, peer = (halves[name] for name in SIDES)
    contest = put_together(comparison, case, [ours.contest, peer.contest])
    return replace(ours, contest=contest, memory=_join_memories([ours.memory, peer.memory]), apart=True)


def _join_memories(memories: Sequence[Memory]) -> Memory:
    peaks = zip(*(memory.peak_bytes_per_rank for memory in memories), strict=True)
    return Memory(kind=memories[0].kind, peak_bytes_per_rank=tuple(map(max, peaks)))


def summarise(
    comparison: Comparison, jobs: Sequence[Job], tolerance: Tolerance, load: float, needed: SideBytes | None = None
) -> ContestResult:
    """Summarise what rank 0 of each job measured. needed: by a rank, as memory.py has it."""
    contests = tuple(job.contest for job in jobs)
    times = [(steps(job.ours), steps(job.peer)) for job in contests]
    processor_times = [(steps(job.ours, processor=True), steps(job.peer, processor=True)) for job in contests]
    losses, norms = zip(*map(difference, contests), strict=True)
    return ContestResult(
        **asked_fields(comparison, needed),
        apart=jobs[0].apart,
        ratio=ratio_of_medians(times),
        job_ratios=tuple(ratio_of_medians([job]) for job in times),
        paired=paired(contests),
        cpu_ratio=ratio_of_medians(processor_times),
        ours_median_s=median(chain.from_iterable(ours for ours, _ in times)),
        peer_median_s=median(chain.from_iterable(peer for _, peer in times)),
        equality=Equality(
            steps=len(contests[0].ours.losses),
            losses=max(losses),
            gradient_norms=max(norms),
            tolerance=tolerance.losses,
            norm_tolerance=tolerance.norms,
        ),
        memory=_join_memories([job.memory for job in jobs]),
        jobs=contests,
        load=load,
    )


def table(report: PeersResult) -> str:
    """Write a line for each contest, with what it decides: won, lost or undecided, and whether a target is met; then
    one for each side whose step was parted.
    """
    rows = [["peer", "grid", "ours s", "peer s", "paired (interval)", "outcome", "target", "of medians"]]
    rows[0] += ["jobs", "rounds", "cpu", ""]
    for c in report.comparisons:
        assert c.paired is not None
        interval, jobs = c.paired.interval, len(c.jobs)
        rows.append(
            [
                _name(c),
                c.grid,
                f"{c.ours_median_s:.4f}",
                f"{c.peer_median_s:.4f}",
                str(c.paired),
                WON[verdict(interval, jobs)],
                "-" if c.target is None else f"{c.target:.2f} {MET[standing(interval, jobs, c.target)]}",
                f"{c.ratio:.3f}",
                _span(c.job_ratios),
                _span(round_ratios(c.jobs)),
                f"{c.cpu_ratio:.3f}",
                "one after the other" if c.apart else "",
            ]
        )
    lines = [columns(rows, left=len(rows[0])), *_parts(report)]
    lines += [f"{_name(c)} on {c.grid} is skipped: {c.missing}" for c in report.contests if c.missing]
    if min((len(c.jobs) for c in report.comparisons), default=FEWEST_JOBS) < FEWEST_JOBS:
        lines.append(ONE_JOB)
    return "\n".join(lines) + "\n"


def _name(comparison: Asked) -> str:
    return f"{comparison.peer} {comparison.layout}" if comparison.layout else comparison.peer


def _parts(report: PeersResult) -> list[str]:
    """Write where a step of each side goes, the medians over jobs, and why one has no parts that were asked for."""
    rows, lacks = [], []
    for c in report.comparisons:
        for side in SIDES:
            found = parts(c.jobs, side)
            if found is not None:
                seconds = [getattr(found, f"{part}_s") for part in PARTS]
                rows.append([_name(c), side, *(f"{part_s:.4f}" for part_s in seconds)])
            reasons = dict.fromkeys(getattr(job, side).unparted for job in c.jobs)
            lacks += [f"{_name(c)}: no parts of a step of {side}, as {reason}." for reason in reasons if reason]
    heads = ["peer", "side", *(f"{part} s" for part in PARTS)]
    return [*(["", columns([heads, *rows], left=2)] if rows else []), *lacks]


def _span(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.3f}..{max(ratios):.3f}"
