"""Times that were taken in turns."""

from collections.abc import Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

from engine.result.definition import figure
from engine.result.interval import Interval, over_jobs, over_rounds


@figure("Ratio of medians", "median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)")
def ratio_of_medians(jobs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """It divides the engine's median step time of a job by the peer's, in a contest; the median over jobs is given.

    Each side's steps of a job are taken together, so that noise in one round of one side does not cancel.
    """
    return median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)


@figure("Memory by that of the peer", "ours_bytes / peer_bytes")
def memory_ratio(ours_bytes: float, peer_bytes: float) -> float:
    """It divides the most that the device's allocator held for the engine's side of a contest by that for the peer's.

    It counts on rank 0 from before a side is built to the end of its warm-up, beyond what was there before, the most
    of any job.
    Compiled code, libraries and their workspaces are not in it; on processors only tensors are.
    """
    return ours_bytes / peer_bytes


class Paired(NamedTuple):
    """Ratio of times that were taken in turns, with its interval, which may be NOTHING_KNOWN."""

    ratio: float
    interval: Interval


@figure("Paired ratio of a job", "median(time_s / base_s for time_s, base_s in rounds)")
def paired_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """It compares two ways to do the same, measured in turns in the same processes, by the median over rounds of the
    ratio of their times.

    In each round every way takes as many steps, in another order each time; the time of a way in a round is the median
    of its steps. Noise that lasts longer than a round disturbs both sides alike and cancels. Not so where the sides of
    a contest ran one after the other because a device can't hold both: minutes lie between the rounds of a pair, and
    noise stays in the ratio; of a drift, the order of the sides cancels what it can.
    """
    return median(time_s / base_s for time_s, base_s in rounds)


@figure("Paired ratio", "geometric_mean(ratios)")
def ratio_over_jobs(ratios: Sequence[float]) -> float:
    """It is the geometric mean of the paired ratios of jobs, each with processes of its own; of one job its own.

    With two jobs or more its interval, of confidence 0.95, is Student's t of their logarithms: it says what other such
    jobs would give. Rounds of one job don't tell that, so the interval of a single job, by the order of six rounds or
    more, speaks of that job alone, and of fewer rounds nothing is known.
    """
    return geometric_mean(ratios)


def paired(jobs: Sequence[Sequence[tuple[float, float]]]) -> Paired:
    """It is the paired ratio of jobs, each with its rounds, and its interval: see ratio_over_jobs.

    Jobs without a round don't count. Raises ValueError where none has one.
    """
    timed = [rounds for rounds in jobs if rounds]
    if not timed:
        raise ValueError("A paired ratio takes at least one round.")
    ratios = [paired_ratio(rounds) for rounds in timed]
    if len(timed) > 1:
        return Paired(ratio_over_jobs(ratios), over_jobs(ratios))
    return Paired(ratios[0], over_rounds([time_s / base_s for time_s, base_s in timed[0]]))
