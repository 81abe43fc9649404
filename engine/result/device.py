"""Benchmarks of one device measured these: matrix products, memory, launches.

Where several ranks measured at once, each figure is the mean of what they found.
"""

from typing import Literal

from engine.schema import Record

Mode = Literal["NN", "NT", "TN"]


class GemmPoint(Record):
    """It is the product of square matrices of one size. A size that was not measured says why.

    mode: how both lie in memory, N row by row and T column by column.
    """

    size: int
    mode: Mode = "NN"
    flops_per_s: float | None = None
    median_time_s: float | None = None
    repeats: int = 0
    skipped: str | None = None


class StreamKernel(Record):
    """It is one kernel of STREAM: the best and the median of its repeats. arrays: how many it reads and writes."""

    name: Literal["copy", "scale", "add", "triad"]
    arrays: int
    best_bytes_per_s: float
    median_bytes_per_s: float


class Stream(Record):
    """It is the memory bandwidth of a rank. array_bytes: of each of its three arrays; repeats: of each kernel.

    cache_bytes: the last-level caches that it reaches, absent where that isn't known.
    """

    array_bytes: int
    cache_bytes: int | None = None
    repeats: int
    kernels: tuple[StreamKernel, ...]


Launched = Literal["dispatch", "completion", "graph"]


class LaunchTime(Record):
    """These are seconds of one tiny operator, the median of samples with the 5th and 95th percentile.

    dispatch: host time until the call returns. completion: of a launch and the wait for its end. graph: the same of a
    captured graph. operators: of one sample, one after another, over which its time is divided.
    """

    name: Launched
    operators: int
    samples: int
    median_s: float
    low_s: float
    high_s: float
