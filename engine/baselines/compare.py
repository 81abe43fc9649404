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
from pydantic import BaseModel, ConfigDict, Field

from engine import provenance
from engine.baselines import CONTESTS, Case, Contest, Measured
from engine.baselines.ranks import run_ranks
from engine.errors import UsageError, nearest
from engine.files import write_text
from engine.fit import Batch, check_grid
from engine.result import Provenance

log = logging.getLogger(__name__)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Comparison(_Record):
    """One contest. ratio: our median step time by the peer's, over all timed steps, to be at most the target.

    cpu_ratio: the same of processor seconds. round_ratios: ratio for each round alone. medians and ours, peer: rank
    0's. load: runnable processes of the whole machine when it started, averaged over a minute.
    """

    peer: str
    peer_is: str
    grid: str
    ranks: int
    target: float | None
    ratio: float
    cpu_ratio: float
    round_ratios: tuple[float, ...]
    ours_median_s: float
    peer_median_s: float
    measured: Measured
    load: float


class Report(_Record):
    """All contests of one command, and what they ran."""

    schema_: Literal["par4d.peers"] = Field(default="par4d.peers", alias="schema")
    version: Literal[1] = 1
    case: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    provenance: Provenance

    model_config = ConfigDict(extra="forbid", frozen=True, validate_by_name=True)


def chosen(names: Sequence[str]) -> list[Contest]:
    """The contests of those names, or every one for "all". Raises UsageError for an unknown name."""
    if "all" in names:
        return list(CONTESTS.values())
    for name in names:
        if name not in CONTESTS:
            raise UsageError(f"No peer is called {name!r}: {nearest(name, [*CONTESTS, 'all'])}")
    return [CONTESTS[name] for name in names]


def checked(case: Case, contests: Sequence[Contest]) -> None:
    """Raises UsageError for whatever can't be run, before anything is."""
    numbers = {"--rounds": case.rounds, "--steps-per-round": case.steps, "--threads": case.threads}
    for option, number in numbers.items():
        if number < 1:
            raise UsageError(f"{option} is at least 1, but {number} was given.")
    for contest in contests:
        check_grid(case.model, contest.grid, Batch(case.sequences))


def compare(names: Sequence[str], case: Case, out: Path) -> Report:
    """Run the contests and write them to out, each as it ends. Raises UsageError or RunError."""
    contests = chosen(names)
    checked(case, contests)
    start, found = provenance.now(), []
    for contest in contests:
        load = os.getloadavg()[0]
        comparison = _comparison(contest, run_ranks(contest.name, case), load)
        found.append(comparison)
        log.info("%s: ratio %.3f", contest.name, comparison.ratio)
        report = Report(
            case=asdict(case),
            comparisons=tuple(found),
            provenance=provenance.collect(
                start=start, launcher="spawn", devices=[provenance.device_name(torch.device("cpu"))]
            ),
        )
        write_text(out, report.model_dump_json(by_alias=True, indent=1) + "\n")
    return report


def _comparison(contest: Contest, measured: Measured, load: float) -> Comparison:
    ours, peer = measured.ours, measured.peer
    ours_s, peer_s = _median(ours.wall_s), _median(peer.wall_s)
    return Comparison(
        peer=contest.name,
        peer_is=contest.peer,
        grid=str(contest.grid),
        ranks=contest.grid.size,
        target=contest.target,
        ratio=ours_s / peer_s,
        cpu_ratio=_median(ours.cpu_s) / _median(peer.cpu_s),
        round_ratios=tuple(median(a) / median(b) for a, b in zip(ours.wall_s, peer.wall_s, strict=True)),
        ours_median_s=ours_s,
        peer_median_s=peer_s,
        measured=measured,
        load=load,
    )


def _median(rounds: Iterable[Iterable[float]]) -> float:
    return median(chain.from_iterable(rounds))


def table(report: Report) -> str:
    """For a person: one line a contest."""
    lines = [f"{'peer':<16}{'grid':<8}  ours s  peer s  ratio  target  min to max of rounds, median  processor time"]
    for c in report.comparisons:
        target = "-" if c.target is None else f"{c.target:.2f}"
        spread = f"{min(c.round_ratios):.3f} to {max(c.round_ratios):.3f}, {median(c.round_ratios):.3f}"
        lines.append(
            f"{c.peer:<16}{c.grid:<8}{c.ours_median_s:8.4f}{c.peer_median_s:8.4f}{c.ratio:7.3f}{target:>8}"
            f"  {spread:<28}  {c.cpu_ratio:14.3f}"
        )
    return "\n".join(lines) + "\n"
