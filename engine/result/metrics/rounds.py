"""Metrics of comparisons and of predictions."""

from collections.abc import Sequence
from statistics import correlation, geometric_mean, median
from typing import NamedTuple

from engine.result.gate import Interval, over_jobs, over_rounds
from engine.result.metrics.definition import figure


@figure("Ratio of medians", "median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)")
def ratio_of_medians(jobs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Median step time of the engine in a job of a contest, over the peer's; the median over jobs is given.

    Each side's steps of a job are taken together, so that noise in one round of one side does not cancel.
    """
    return median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)


@figure("Memory by that of the peer", "ours_bytes / peer_bytes")
def memory_ratio(ours_bytes: float, peer_bytes: float) -> float:
    """Most memory of the engine's side of a contest in the device's allocator, over the peer's: on rank 0, of any job,
    from before a side is built to the end of its warm-up.

    Compiled code, libraries and their workspaces are not in it; on processors only tensors are.
    """
    return ours_bytes / peer_bytes


class Paired(NamedTuple):
    """Ratio of times that were taken in turns, with its interval, which may be NOTHING_KNOWN."""

    ratio: float
    interval: Interval


@figure("Paired ratio of a job", "median(time_s / base_s for time_s, base_s in rounds)")
def paired_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """Ratio of two ways to do the same in the same processes: the median over rounds of the ratio of their times.

    In each round every way takes as many steps, in another order each time; its time is their median. Noise that lasts
    longer than a round disturbs both sides equally and cancels, but not where a device can't hold both sides, which
    then ran one after the other: minutes lie between the rounds of a pair.
    """
    return median(time_s / base_s for time_s, base_s in rounds)


@figure("Paired ratio", "geometric_mean(ratios)")
def ratio_over_jobs(ratios: Sequence[float]) -> float:
    """Geometric mean of the paired ratios of jobs, each with processes of its own; of one job its own.

    With two jobs or more its interval, of confidence 0.95, is Student's t of their logarithms, and speaks of other such
    jobs. That of a single job, by the order of six rounds or more, speaks of that job alone.
    """
    return geometric_mean(ratios)


def paired(jobs: Sequence[Sequence[tuple[float, float]]]) -> Paired:
    """Return the paired ratio of jobs, each with its rounds, and its interval: see ratio_over_jobs.

    Jobs without a round don't count. Raises ValueError where none has one.
    """
    timed = [rounds for rounds in jobs if rounds]
    if not timed:
        raise ValueError("A paired ratio takes at least one round.")
    ratios = [paired_ratio(rounds) for rounds in timed]
    if len(timed) > 1:
        return Paired(ratio_over_jobs(ratios), over_jobs(ratios))
    return Paired(ratios[0], over_rounds([time_s / base_s for time_s, base_s in timed[0]]))


@figure("Memory by that of a device", "planned_bytes / device_bytes")
def of_device_memory(planned_bytes: float, device_bytes: float) -> float:
    """Planned memory at the fullest moment of a step, over all memory of a device."""
    return planned_bytes / device_bytes


@figure("Error of a prediction", "predicted_s / measured_s - 1")
def prediction_error(predicted_s: float, measured_s: float) -> float:
    """Error of a simulated time, relative to the measured or published one: above 0 where more was predicted."""
    return predicted_s / measured_s - 1


@figure("Mean absolute error", "sum(abs(error) for error in errors) / len(errors)")
def mean_absolute_error(errors: Sequence[float]) -> float:
    """Mean error of several predictions, without those that a machine's numbers were fitted to."""
    return sum(abs(error) for error in errors) / len(errors)


@figure("Median absolute error", "median(abs(error) for error in errors)")
def median_absolute_error(errors: Sequence[float]) -> float:
    """Median of the same errors, which a few grids that are far off don't move."""
    return median(abs(error) for error in errors)


@figure("Rank correlation (Spearman)", "correlation([a for a, _ in places], [b for _, b in places])")
def spearman(places: Sequence[tuple[float, float]]) -> float:
    """Agreement of the order of all grids as predicted and as measured: 1 is the same, -1 turned round, and 0 where one
    tells nothing apart. places: of each grid in both orders; grids that one doesn't tell apart share their mean place.
    """
    if min(len(set(order)) for order in zip(*places, strict=True)) == 1:
        return 0.0
    return correlation([a for a, _ in places], [b for _, b in places])


@figure("Time lost by an order", "first_s / fastest_s - 1")
def lost_by_order(first_s: float, fastest_s: float) -> float:
    """Part by which the measured time of the grid that an order puts first (the mean of several that it doesn't tell
    apart) exceeds that of the fastest.
    """
    return first_s / fastest_s - 1
