"""Results of benchmarks of one device, of links between devices, and of sampling images.

Where several ranks measured at once, figures of a device are the mean over them.
"""

import base64
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from engine.result import SamplerName
from engine.schema import Record

ProductMode = Literal["NN", "NT", "TN"]
"""How both factors lie in memory: N row by row, T column by column."""


class GemmPoint(Record):
    """Product of square matrices of one size."""

    size: int
    mode: ProductMode = "NN"
    flops_per_s: float | None = None
    median_time_s: float | None = None
    repeats: int = 0
    skipped: str | None = None
    """Why it was not measured."""


class StreamKernel(Record):
    """Kernel of STREAM."""

    name: Literal["copy", "scale", "add", "triad"]
    arrays: int
    best_bytes_per_s: float
    median_bytes_per_s: float


class StreamBandwidth(Record):
    """Memory bandwidth of a rank."""

    array_bytes: int
    """Size of each of its three arrays."""
    cache_bytes: int | None = None
    """Last-level caches that it reaches, where that is known."""
    repeats: int
    kernels: tuple[StreamKernel, ...]


Launched = Literal["dispatch", "completion", "graph"]


class LaunchTime(Record):
    """Seconds of one tiny operator: the median of samples with the 5th and 95th percentile."""

    name: Launched
    """dispatch: host time until the call returns. completion: of a launch and the wait for its end. graph: the same of
    a captured graph.
    """
    operators: int
    """Operators of one sample, over which its time is divided."""
    samples: int
    median_s: float
    low_s: float
    high_s: float


Recomputed = Literal["nothing", "blocks"]


class CountedStep(Record):
    """Flops of a rank in a training step."""

    recomputed: Recomputed
    """Parts of the network that ran forward twice, as activations were checkpointed."""
    counted: int = Field(gt=0)
    """Those of the products that torch dispatched."""
    formula: int = Field(gt=0)
    """Those by which utilisation is told (models/flops.py)."""


class LayerCosts(Record):
    """Elements and bytes of a step of two linear layers."""

    batch: int = Field(gt=0)
    """Sequences of all ranks."""
    sequence: int = Field(gt=0)
    hidden: int = Field(gt=0)
    """Features that each takes and gives."""
    moved_elements: float = Field(ge=0)
    """Sum over all ranks of what the funnel was asked to send, by rings."""
    moved_formula: int = Field(ge=0)
    held_bytes: int = Field(gt=0)
    """The most of a rank's allocator once the forward is over."""
    held_formula: int = Field(gt=0)
    peak_bytes: int = Field(gt=0)
    """The most of a rank's allocator in the step."""


class Sampled(Record):
    """Seconds of a call: the median, the least and the most of samples."""

    samples: int
    calls: int
    """Calls of one sample, over which its time is divided."""
    median_s: float
    low_s: float
    high_s: float


class CollectiveTime(Sampled):
    """One collective in all groups at once, on the slowest rank. bytes_per_s: from rank to rank, in one direction."""

    kind: Literal["all_gather", "reduce_scatter", "all_reduce"]
    input_bytes: int
    """Bytes of a rank's input buffer."""
    moved_bytes: float
    """Bytes that a rank of a ring sends for it."""
    bytes_per_s: float
    processor_s: float | None = None
    """Mean time that it takes of a rank's processor, all threads together; None for accelerators."""


class Rings(Record):
    """Groups that communicated at once."""

    apart: int
    """Distance of the ranks of a group."""
    ranks: int
    """Ranks of a group."""
    groups: int
    nodes: int
    """Nodes of one group."""
    times: tuple[CollectiveTime, ...]
    bytes_per_s: float
    """Rate of the largest message, the three collectives together."""


class Broadcast(Sampled):
    """Message from the first of some ranks to the others, of whom none is in the way; on the slowest rank."""

    ranks: tuple[int, ...]
    bytes_per_s: float
    """Bytes of the message by its time."""


class FittedLink(Record):
    """Link between nodes that fits all that one rank a node measured (engine/simulator/link.py)."""

    bytes_per_s: float
    step_s: float
    half_bytes: float


class Links(Record):
    """Measurements of links by `bench collectives`."""

    nodes: int
    devices_per_node: int
    message_bytes: int
    """The largest buffer, input or output."""
    within: tuple[Rings, ...] = ()
    """Groups within a node, on all nodes at once; those of all its processors in several sizes."""
    alone: tuple[Rings, ...] = ()
    """One rank a node, of two nodes and of all, in several sizes."""
    shared: tuple[Rings, ...] = ()
    """All ranks of all nodes, as one ring, and as more and more until each has one rank a node."""
    fitted: FittedLink | None = None
    broadcasts: tuple[Broadcast, ...] = ()
    """Between each pair of ranks, and among the first 2, 4, 8 ... and all (colossal-ai, Fig. 10)."""


Operation = Literal["message", "all_reduce"]
Backend = Literal["gloo", "memory", "nccl", "mpi"]
"""memory, shared by the ranks of a host, is in older results."""


class Transfer(Sampled):
    """Time of one back end for one size by `bench p2p`, on the slowest rank, as the OSU micro-benchmarks define it, so
    that it compares with those (axonn-ipdps22, Fig. 3 and 4).

    A message's time is one way, half of that there and back (osu_latency). An all-reduce's is that of a call which the
    ranks begin together (osu_allreduce).
    """

    operation: Operation
    backend: Backend
    nodes: int
    """Nodes of these ranks; 1 is within a node."""
    ranks: int
    num_bytes: int
    """Bytes on each rank."""
    average_s: float
    """Median of the mean over the ranks that take part, which osu_allreduce prints."""


def _png(text: str) -> str:
    if not base64.b64decode(text, validate=True).startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("a sheet of images is a PNG")
    return text


class ImageSheet(Record):
    """Images that a trained network made, on one sheet."""

    trained_steps: int
    sampler: SamplerName
    steps: int
    """Steps of the sampler."""
    images: int = Field(gt=0)
    side: int = Field(gt=0)
    """Pixels of an image's side."""
    time_s: float
    png: Annotated[str, AfterValidator(_png)]
    """The sheet, in base64."""
