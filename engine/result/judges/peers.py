"""Judgement of contests of the engine with peers."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from engine.result import gate, metrics
from engine.result.gate import Interval
from engine.result.schema.contest import Ratio
from engine.result.schema.peers import Peaks, PeerContest, PeerSide, SideName, Work, pairs
from engine.result.schema.profile import StepParts

WON: dict[gate.Outcome, str] = {"pass": "won", "fail": "lost", "undecided": "undecided"}
"""Words for a person of verdict()."""
MET: dict[gate.Outcome, str] = {"pass": "met", "fail": "missed", "undecided": "undecided"}
"""Words for a person of standing()."""
FEWEST_JOBS = 2
"""One set of processes happens to be faster or slower for one side as long as it lives, and tells nothing of others.
Two leave a wide interval, as Student's t of one degree of freedom is 12.7; of three jobs it is 4.3, of six 2.6.
"""


def rounds(jobs: Sequence[PeerContest]) -> list[list[tuple[float, float]]]:
    """Return each job's rounds: the median seconds of a step of ours and of the peer's."""
    return [pairs(job.ours, job.peer) for job in jobs]


def round_ratios(jobs: Sequence[PeerContest]) -> list[float]:
    """Return the ratio of each round, job by job."""
    return [metrics.paired_ratio([pair]) for pair in chain.from_iterable(rounds(jobs))]


def paired(jobs: Sequence[PeerContest]) -> Ratio:
    return Ratio.of(metrics.paired(rounds(jobs)))


def verdict(interval: Interval, jobs: int) -> gate.Outcome:
    """Judge the engine by the interval of its paired ratio: pass where all of it is below 1, fail where all is above.

    Anything else is undecided, and so is whatever fewer than FEWEST_JOBS jobs measured.
    """
    return gate.on_one_side(interval, 1.0) if jobs >= FEWEST_JOBS else "undecided"


def standing(interval: Interval, jobs: int, target: float) -> gate.Outcome:
    """Judge whether the paired ratio is at or below the target; undecided of fewer than FEWEST_JOBS jobs."""
    return gate.at_most(interval, target) if jobs >= FEWEST_JOBS else "undecided"


class Speed(NamedTuple):
    """Rates of a job; shares are None without the peak."""

    tokens_per_s: float
    model_flops_per_s: float
    mfu: float | None
    hfu: float | None
    of_empirical: float | None


def speed(work: Work, peaks: Peaks, ranks: int, step_s: float) -> Speed:
    """Return the rates that follow from a side's step time."""
    model, hardware = metrics.rate(work.model_flops, step_s), metrics.rate(work.hardware_flops, step_s)

    def share(flops_per_s: float, peak: float | None) -> float | None:
        return metrics.utilisation(flops_per_s, ranks, peak) if peak else None

    return Speed(
        tokens_per_s=metrics.rate(work.tokens, step_s),
        model_flops_per_s=model,
        mfu=share(model, peaks.advertised),
        hfu=share(hardware, peaks.advertised),
        of_empirical=share(hardware, peaks.empirical),
    )


def peak_bytes(jobs: Sequence[PeerContest]) -> tuple[int | None, int | None]:
    """Return the peak memory of ours and the peer's side, the most of any job; None where it wasn't measured."""
    sides = ([job.ours.peak_bytes for job in jobs], [job.peer.peak_bytes for job in jobs])
    ours, peer = (max((peak for peak in side if peak is not None), default=None) for side in sides)
    return ours, peer


def parts(jobs: Sequence[PeerContest], side: SideName) -> StepParts | None:
    """Return the parts of a side's step in the job whose exposed communication is the median; None where none was
    parted. Of an even number of jobs it is the lower of both in the middle, as parts of one step add up.
    """
    known = [found for job in jobs if (found := getattr(job, side).parts) is not None]
    return sorted(known, key=lambda found: found.exposed_s)[(len(known) - 1) // 2] if known else None


def difference(job: PeerContest) -> tuple[float, float]:
    """Return the largest relative difference of losses, and of gradient norms, in a step of the warm-up."""
    losses, _ = metrics.curve_difference(job.ours.losses, job.peer.losses)
    norms, _ = metrics.curve_difference(job.ours.gradient_norms, job.peer.gradient_norms)
    return losses, norms


def steps(side: PeerSide, *, processor: bool = False) -> tuple[float, ...]:
    """Return the seconds of every timed step of a job, elapsed or of the processor."""
    return tuple(chain.from_iterable(side.cpu_s if processor else side.rounds_s))
