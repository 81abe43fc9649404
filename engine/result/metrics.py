"""Every derived figure, computed here and nowhere else: the engine writes them, suites and reports ask for them.

Each function is one figure. Its formula is written in the names of its parameters, and its docstring says what is
counted, what not and how it is measured: the report's page of methods prints both. No torch, no pandas.
"""

import math
import random
from collections.abc import Sequence
from statistics import mean, median
from typing import NamedTuple

from engine.result.definition import Definition
from engine.result.definition import figure as _figure

CONFIDENCE = 0.95
RESAMPLES = 2000


@_figure("Time per iteration", "mean(times_s)")
def time_per_iteration(times_s: Sequence[float]) -> float:
    """Seconds of one optimizer step on rank 0, over the counted iterations: all but the warm-up (axonn-sc24 VI-C).

    Reading the batch is counted; saving checkpoints and what lies between two steps is not. A point of several jobs is
    the median of their means.
    """
    return mean(times_s)


@_figure("Rate (flop/s, tokens/s)", "work / time_s")
def rate(work: float, time_s: float) -> float:
    """Of the whole job. Work is hardware flops, model flops or tokens of one iteration, over the time per iteration.

    Hardware flops are those of all matrix products of forward and backward, and of the recomputation where activations
    are checkpointed; model flops leave recomputation out. Neither counts what Algorithm 1 computes Gy times over
    between two reductions, element-wise work, or the optimizer. They are closed forms of the shape, not counters.
    """
    return work / time_s


@_figure("Share of the peak (HFU, MFU, of empirical peak)", "flops_per_s / (devices * peak_flops_per_s)")
def utilisation(flops_per_s: float, devices: int, peak_flops_per_s: float) -> float:
    """The fraction of the devices' joint peak that a rate is (axonn-sc24 VI-C).

    HFU: hardware flops of the advertised peak, MFU: model flops of it, both by the vendor's figure in the system's
    file. Of empirical peak: hardware flops of what matrix products alone reach.
    """
    return flops_per_s / (devices * peak_flops_per_s)


@_figure("Empirical peak", "2 * size**3 * multiplications / time_s")
def gemm_rate(size: int, multiplications: float, time_s: float) -> float:
    """The best over sizes of square matrix products, in flop/s of one device.

    That of the system's file, with its source. Where the file has none for the number format, the job measures it
    before it trains: every rank multiplies at once, with as many threads as it trains with, for half a second a size,
    and what they reach together is divided by their number. Alone, `bench gemm` takes the median of several samples of
    each size. fp32 is without TF32.
    """
    return 2 * size**3 * multiplications / time_s


@_figure("Memory bandwidth", "arrays * array_bytes * calls / time_s")
def memory_bandwidth(arrays: int, array_bytes: float, calls: float, time_s: float) -> float:
    """Bytes per second of one device in a kernel of STREAM, as STREAM counts them: each array that the kernel reads or
    writes once, two for copy and scale, three for add and triad.

    What a cache fetches only to overwrite it isn't counted. The numbers have 64 bits; each array takes at least four
    times the last-level cache where memory allows it. Of several repeats, the best and the median. Where ranks measure
    at once it is the mean of what they reach.
    """
    return arrays * array_bytes * calls / time_s


@_figure("Share of the advertised memory bandwidth", "bytes_per_s / advertised_bytes_per_s")
def of_advertised_bandwidth(bytes_per_s: float, advertised_bytes_per_s: float) -> float:
    """Of the vendor's figure in the system's file."""
    return bytes_per_s / advertised_bytes_per_s


@_figure("Time of a tiny operator", "time_s / operators")
def per_operator(time_s: float, operators: int) -> float:
    """Seconds to add to one number, of as many such calls in a row as a sample has.

    Dispatch is the host's time until a call returns: on an accelerator nothing waits for its end, on processors the
    addition itself is in it. Completion: on an accelerator, from the call until the host knows of its end. Graph: the
    same of a captured graph, over its operators. Of many samples the median, the 5th and the 95th percentile.
    """
    return time_s / operators


@_figure("Flop/s per device", "flops_per_s / devices")
def per_device(flops_per_s: float, devices: int) -> float:
    """Model flop/s of the job over its devices."""
    return flops_per_s / devices


@_figure("Efficiency", "per_device_flops_per_s / smallest_per_device_flops_per_s")
def efficiency(per_device_flops_per_s: float, smallest_per_device_flops_per_s: float) -> float:
    """Model flop/s per device, relative to the fastest layout on the fewest devices of the same series (axonn-sc24
    VII-A).

    Model flops, so that a series that turns activation checkpointing on at some size isn't flattered by it. With a
    fixed model and batch it is the parallel efficiency of strong scaling too.
    """
    return per_device_flops_per_s / smallest_per_device_flops_per_s


@_figure("Time to solution", "tokens / tokens_per_s")
def time_to_solution(tokens: float, tokens_per_s: float) -> float:
    """Seconds to train on so many tokens, extrapolated from the counted iterations (axonn-sc24 VII-C).

    No restarts, checkpoints or evaluations are in it.
    """
    return tokens / tokens_per_s


@_figure("Ours over published", "ours / published")
def over_published(ours: float, published: float) -> float:
    """A measured figure by the published one of the same model on as many devices of the same system.

    Batch, grid, software and day are another; a time is set beside one of a batch of as many tokens only.
    """
    return ours / published


@_figure("Loss difference", "abs(loss - reference) / abs(reference)")
def relative_difference(loss: float, reference: float) -> float:
    """Of two losses of the same step, or two gradient norms; that of two curves is the largest over their steps.

    What is not a number differs without bound.
    """
    difference = abs(loss - reference) / abs(reference)
    return math.inf if math.isnan(difference) else difference


def curve_difference(losses: Sequence[float], references: Sequence[float]) -> tuple[float, int]:
    """The largest relative difference of two losses of the same step, and that step, counted from 0.

    Raises ValueError unless both have as many steps.
    """
    both = zip(losses, references, strict=True)
    return max((relative_difference(loss, reference), step) for step, (loss, reference) in enumerate(both))


@_figure("Speed-up (as fast as)", "base_s / time_s")
def speed_up(base_s: float, time_s: float) -> float:
    """How many times as fast as what it is compared with, by time per iteration."""
    return base_s / time_s


@_figure("Time saved (gain)", "1 - time_s / base_s")
def saved(base_s: float, time_s: float) -> float:
    """The part of the time per iteration that is saved: 20 % saved is 0.8 times as long and 1.25 times as fast."""
    return 1 - time_s / base_s


@_figure("Share of communication hidden", "hidden_s / (hidden_s + exposed_s)")
def share_hidden(hidden_s: float, exposed_s: float) -> float | None:
    """Of the seconds of a step in which the rank communicates, those in which it computes as well. On rank 0.

    Hidden: the rank computes while at least one collective is in flight; several at once count once, so it is never
    more than the compute. Exposed: compute stands still for a collective, every wait counted, also those that no
    schedule can avoid and those for a slower rank. A collective is in flight from when its lane comes to it until its
    result is there. That includes waiting for the last rank to join, when nothing travels yet: where ranks run apart,
    part of what is hidden is their difference. None without communication.
    """
    total = hidden_s + exposed_s
    return hidden_s / total if total else None


@_figure("Share of a step", "part_s / step_s")
def share_of_step(part_s: float, step_s: float) -> float:
    """Compute or exposed communication, of the time per iteration on rank 0, of which they are the two parts."""
    return part_s / step_s


@_figure("Bound of a step", "max(compute_s, lane_s)")
def bound(compute_s: float, lane_s: float) -> float:
    """The time that no schedule of the same work can beat: the longer of compute and of the busiest lane.

    Compute is the step less all waits, on rank 0. A lane is one queue of collectives along one axis of the grid; it is
    busy while one of its collectives is in flight. Of the ranks that communicate with each other there the one counts
    for which that is shortest, as the others wait for it to join; of all such groups the one for which it is longest.
    """
    return max(compute_s, lane_s)


@_figure("Bound of a step, ranks sharing cores", "max(processor_s / cores, link_s)")
def bound_on_shared_cores(processor_s: float, cores: float, link_s: float) -> float:
    """The same where the ranks of a machine have more threads than it has cores, so that a wait is mostly the turn of
    another rank: the longer of work and wire.

    Work: processor seconds of a step of all ranks on the machine, threads of their collectives included, over the cores
    they may use. Wire: the bytes that the busiest node's network interface carried one way in a step, over its rate; 0
    where no rate is known, or nothing was carried.
    """
    return max(processor_s / cores, link_s)


@_figure("Difference of a trace from the record", "abs(traced_s - recorded_s) / max(recorded_s, step_s / 20)")
def trace_difference(traced_s: float, recorded_s: float, step_s: float) -> float:
    """A figure of a profiled step, as its trace has it and as the run's own record does.

    What takes less than a twentieth of the step counts as if it took that. Up to 0.02 the two agree.
    """
    return abs(traced_s - recorded_s) / max(recorded_s, step_s / 20)


@_figure("Step by its bound", "step_s / bound_s")
def step_by_bound(step_s: float, bound_s: float) -> float:
    """How much longer a step is than its bound: 1 is a step that could not be shorter with the same work."""
    return step_s / bound_s


@_figure("Share of the greatest gain", "(1 - ratio) / (1 - min(bound_s, bound_none_s) / none_s)")
def share_of_greatest_gain(ratio: float, none_s: float, bound_s: float, bound_none_s: float) -> float | None:
    """What an overlap saves over none, of what could be saved at most. ratio: its time by that of none, paired.

    The most that could be saved is down to the bound of a step, with or without overlap: the smaller of the two, as
    competing for the machine makes both compute and collectives longer. None where nothing could be.
    """
    greatest = 1 - min(bound_s, bound_none_s) / none_s
    return (1 - ratio) / greatest if greatest > 0 else None


@_figure("Ratio of medians", "median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)")
def ratio_of_medians(jobs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Of a contest with a peer: the engine's median step time of a job by the peer's, the median over jobs.

    Each side's steps of a job are taken together, so that noise in one round of one side does not cancel.
    """
    return median(median(job_s) / median(job_base_s) for job_s, job_base_s in jobs)


class Paired(NamedTuple):
    """The median of paired ratios, and its interval."""

    ratio: float
    low: float
    high: float


@_figure("Paired ratio", "median(time_s / base_s for time_s, base_s in rounds)")
def paired_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """Two ways to do the same, measured in turns in the same processes: the median over rounds of the ratio of their
    times.

    In each round every way takes as many steps, in another order each time; the time of a way in a round is the median
    of its steps. Noise that lasts longer than a round disturbs both sides alike and cancels.
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


DEFINITIONS: tuple[Definition, ...] = tuple(
    found for value in tuple(globals().values()) if isinstance(found := getattr(value, "definition", None), Definition)
)
"""Of every figure, in the order of this file."""
