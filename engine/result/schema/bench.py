"""Results of benchmarks of one device, of links between devices, and of sampling images."""

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from engine.result import SamplerName
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


class Sampled(Record):
    """It has the seconds of a call: the median of so many samples, the least and the most. calls: of one sample, one
    after another, over which its time is divided.
    """

    samples: int
    calls: int
    median_s: float
    low_s: float
    high_s: float


class CollectiveTime(Sampled):
    """It is one collective in all groups at once.

    input_bytes: of a rank's input buffer; moved_bytes: what a rank of a ring sends for it. processor_s: that it takes
    of a rank's processor, all threads together, on average; absent for accelerators.
    """

    kind: Literal["all_gather", "reduce_scatter", "all_reduce"]
    input_bytes: int
    moved_bytes: float
    bytes_per_s: float
    processor_s: float | None = None


class Rings(Record):
    """These groups communicated at once, of so many ranks each, which are so many ranks apart.

    groups: in all; nodes: that one of them spans. bytes_per_s: of the largest message, the three collectives together.
    """

    apart: int
    ranks: int
    groups: int
    nodes: int
    times: tuple[CollectiveTime, ...]
    bytes_per_s: float


class FittedLink(Record):
    """It is the link between nodes that fits all that one rank a node measured (engine/simulator/link.py)."""

    bytes_per_s: float
    step_s: float
    half_bytes: float


class Links(Record):
    """They are what was measured of links. message_bytes: the largest buffer, input or output. within: groups within a
    node, on all nodes at once, those of all its processors in several sizes. alone: one rank a node, of two nodes and
    of all, in several sizes. shared: all ranks of all nodes, as one ring, and as more and more until each has one rank
    a node.
    """

    nodes: int
    devices_per_node: int
    message_bytes: int
    within: tuple[Rings, ...] = ()
    alone: tuple[Rings, ...] = ()
    shared: tuple[Rings, ...] = ()
    fitted: FittedLink | None = None


Backend = Literal["gloo", "memory", "nccl", "mpi"]
"""memory: shared by the ranks of a host, in results of before."""
Operation = Literal["message", "all_reduce"]


class Transfer(Sampled):
    """It is what one back end takes for one size, on the slowest rank.

    A message's time is one way, half of that there and back (osu_latency). An all-reduce's is that of a call which the
    ranks begin together, of num_bytes on each (osu_allreduce). average_s: the median of the mean over the ranks that
    take part, which osu_allreduce prints. nodes: over which these ranks are; 1 is within a node.
    """

    operation: Operation
    backend: Backend
    nodes: int
    ranks: int
    num_bytes: int
    average_s: float


_BEGINS = b"\x89PNG\r\n\x1a\n"


def _png(text: str) -> str:
    if not base64.b64decode(text, validate=True).startswith(_BEGINS):
        raise ValueError("a sheet of images is a PNG")
    return text


class ImageSheet(Record):
    """It has so many images of side x side pixels. trained_steps: after how many optimizer steps the network made them.
    steps: those of the sampler. time_s: for all of them. png: the sheet itself, in base64.
    """

    trained_steps: int
    sampler: SamplerName
    steps: int
    images: int = Field(gt=0)
    side: int = Field(gt=0)
    time_s: float
    png: Annotated[str, AfterValidator(_png)]
