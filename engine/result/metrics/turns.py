"""Times that were taken in turns."""

import random
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from engine.result.definition import figure

CONFIDENCE = 0.95
RESAMPLES = 2000


@figure("Ratio of medians", "median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)")
def ratio_of_medians(jobs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Of a contest with a peer: the engine's median step time of a job by the peer's, the median over jobs.

    Each side's steps of a job are taken together, so that noise in one round of one side does not cancel.
    """
    return median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)


@figure("Memory by that of the peer", "ours_bytes / peer_bytes")
def memory_ratio(ours_bytes: float, peer_bytes: float) -> float:
    """Of a contest: the most that the device's allocator held for the engine's side, by that for the peer's.

    From before a side is built to the end of its warm-up, beyond what was there before, the most of any job; on rank 0.
    Compiled code, libraries and their workspaces are not in it; on processors only tensors are.
    """
    return ours_bytes / peer_bytes


class Paired(NamedTuple):
    """The median of paired ratios, and its interval."""

    ratio: float
    low: float
    high: float


@figure("Paired ratio", "median(time_s / base_s for time_s, base_s in rounds)")
def paired_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """Two ways to do the same, measured in turns in the same processes: the median over rounds of the ratio of their
    times.

    In each round every way takes as many steps, in another order each time; the time of a way in a round is the median
    of its steps. Noise that lasts longer than a round disturbs both sides alike and cancels. Not so where the sides of
    a contest ran apart, in processes one after the other because a device can't hold both: minutes lie between the
    rounds of a pair, and noise stays in the ratio.
    """
    return median(time_s / base_s for time_s, base_s in rounds)


def paired(jobs: Sequence[Sequence[tuple[float, float]]]) -> Paired:
    """The paired ratio over the rounds of all jobs, with the interval of confidence 0.95 of that median.

    By bootstrap: jobs are drawn with replacement and rounds within each, 2000 times, from a fixed seed. It tells how
    far the rounds of these jobs scatter: what another job would measure is only known from other jobs, and from fewer
    than about six of them the interval is too narrow. Raises ValueError without a round.
    """
    if not any(jobs):
        raise ValueError("A paired ratio takes at least one round.")
    ratios = [[time_s / base_s for time_s, base_s in rounds] for rounds in jobs if rounds]
    drawing = random.Random(0)
    medians = sorted(
        median(
            [
                ratio
                for rounds in drawing.choices(ratios, k=len(ratios))
                for ratio in drawing.choices(rounds, k=len(rounds))
            ]
        )
        for _ in range(RESAMPLES)
    )
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    whole = paired_ratio([pair for rounds in jobs for pair in rounds])
    return Paired(whole, medians[tail], medians[-1 - tail])
