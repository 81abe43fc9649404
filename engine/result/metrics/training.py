"""Metrics of a training run."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

from engine.result.metrics.definition import figure


@figure("Time per iteration", "mean(times_s)")
def time_per_iteration(times_s: Sequence[float]) -> float:
    """Mean seconds of one optimizer step on rank 0, over the counted iterations: all but the warm-up (axonn-sc24 VI-C).

    Reading the batch is counted; saving checkpoints and what lies between two steps is not. A point of several jobs is
    the median of their means.
    """
    return mean(times_s)


@figure("Faster half", "mean(sorted(times_s)[: (len(times_s) + 1) // 2])")
def faster_half(times_s: Sequence[float]) -> float:
    """Mean seconds of one optimizer step on rank 0, over the faster half of the counted iterations.

    Other work on a machine makes steps longer and none shorter: this varies less from job to job than the mean of all,
    so that it tells one night from another. It doesn't show what makes only some steps longer.
    """
    return mean(sorted(times_s)[: (len(times_s) + 1) // 2])


@figure("Rate (flop/s, tokens/s)", "work / time_s")
def rate(work: float, time_s: float) -> float:
    """Work of the whole job (hardware flops, model flops or tokens of one iteration) over the time per iteration; in a
    contest over the median of a side's steps.

    Hardware flops are those of all matrix products of forward and backward, and of the recomputation of checkpointed
    activations; model flops leave that out. Neither counts what Algorithm 1 computes Gy times over between two
    reductions, element-wise work, or the optimizer. They are closed forms of the shape, not counters.
    """
    return work / time_s


@figure("Share of the peak (HFU, MFU, of empirical peak)", "flops_per_s / (devices * peak_flops_per_s)")
def utilisation(flops_per_s: float, devices: int, peak_flops_per_s: float) -> float:
    """Rate as a fraction of the devices' joint peak (axonn-sc24 VI-C).

    HFU: hardware flops, MFU: model flops of the advertised peak, which is the vendor's figure in the system's file. Of
    empirical peak: hardware flops of the rate of matrix products alone.
    """
    return flops_per_s / (devices * peak_flops_per_s)


@figure("Flop/s per device", "flops_per_s / devices")
def per_device(flops_per_s: float, devices: int) -> float:
    """Model flop/s of the job over its devices."""
    return flops_per_s / devices


@figure("Efficiency", "per_device_flops_per_s / smallest_per_device_flops_per_s")
def efficiency(per_device_flops_per_s: float, smallest_per_device_flops_per_s: float) -> float:
    """Model flop/s per device, relative to the fastest layout on the fewest devices of the same series (axonn-sc24
    VII-A).

    Model flops don't flatter a series that turns activation checkpointing on at some size. With a fixed model and batch
    it is the parallel efficiency of strong scaling too.
    """
    return per_device_flops_per_s / smallest_per_device_flops_per_s


@figure("Time to solution", "tokens / tokens_per_s")
def time_to_solution(tokens: float, tokens_per_s: float) -> float:
    """Seconds to train on that number of tokens, extrapolated from the counted iterations (axonn-sc24 VII-C), without
    restarts, checkpoints or evaluations.
    """
    return tokens / tokens_per_s


@figure("Device-hours", "seconds * devices / 3600")
def device_hours(seconds: float, devices: int) -> float:
    """Charge of a time on a number of devices, where every device counts the same."""
    return seconds * devices / 3600


@figure("Ours over published", "ours / published")
def over_published(ours: float, published: float) -> float:
    """Measured figure over the published one of the same model on as many devices of the same system. Batch, grid,
    software and day are another; a time stands beside one of a batch of as many tokens only.
    """
    return ours / published


@figure("Loss difference", "abs(loss - reference) / abs(reference)")
def relative_difference(loss: float, reference: float) -> float:
    """Relative difference of two losses of the same step, or of two gradient norms; of two curves the largest over
    their steps. What is not a number differs without bound.
    """
    difference = abs(loss - reference) / abs(reference)
    return math.inf if math.isnan(difference) else difference


def curve_difference(losses: Sequence[float], references: Sequence[float]) -> tuple[float, int]:
    """Return the largest relative difference of two losses of the same step, with that step, counted from 0.

    Raises ValueError unless both have as many steps.
    """
    both = zip(losses, references, strict=True)
    return max((relative_difference(loss, reference), step) for step, (loss, reference) in enumerate(both))


WINDOW = 100
"""Steps over which the losses of long curves are averaged."""


def window_means(losses: Sequence[float]) -> list[float]:
    """Return the means of successive windows of about WINDOW steps, or of all steps where they are fewer."""
    windows = max(1, len(losses) // WINDOW)
    borders = [at * len(losses) // windows for at in range(windows + 1)]
    return [mean(losses[start:stop]) for start, stop in pairwise(borders)]


@figure("Share of a step", "part_s / step_s")
def share_of_step(part_s: float, step_s: float) -> float:
    """Compute or exposed communication over the time per iteration on rank 0, which they make up."""
    return part_s / step_s
