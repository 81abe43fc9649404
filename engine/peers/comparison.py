"""Comparison of the same serial model under other people's parallelism and on the engine's grid, in the same run.

Each peer is described by a file in known/, which registry.py reads. It names the class that satisfies peer.Peer, which
only ranks load: no torch here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from engine.batch import Batch
from engine.comm.meeting import MEETING_S
from engine.errors import EngineError, UsageError
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.options import NO_OPTION, Bytes, DeviceName, Seconds
from engine.overlap.flags import ALL, Overlap
from engine.peers.layout import SPLITS, Layout, PeerLayout, Split, usual
from engine.reduce_dtype import reduce_dtype
from engine.timeouts import Timeouts
from engine.training_record import BYTES, FIRST_LOSS_SCALE, PrecisionName, ReduceDtype, Training, TrainingOptions


@dataclass(frozen=True, slots=True)
class Option:
    """Setting of a library for speed, on processors and on GPUs, beyond what a comparison itself fixes; None is the
    library's own. The columns of GPUs follow the libraries' sources; no GPU has run them yet.
    """

    cpu: Any
    cuda: Any
    source: str
    """File of the library at the version that external/*.txt pins, or a page of its documentation."""
    needs: str | None = None
    """Module that has the kernel; where it isn't installed, the value is that of processors."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How a peer uses memory, by which memory.py counts what a rank of it needs."""

    data: Literal["nothing", "optimizer", "gradients", "weights"] = "nothing"
    """The most that its data ranks divide: nothing (DDP), optimizer states (ZeRO-1), gradients (ZeRO-2), or weights
    (ZeRO-3, FSDP); each takes in what comes before it.
    """
    divides: tuple[str, str] | None = None
    """Section and name of the setting with which data ranks divide the optimizer's states as well."""
    keeps: Literal["never", "always", "unless recomputing", "in a pipeline"] = "never"
    """When gathered weights of all blocks are there at once."""
    sums: bool = True
    """Whether gradients are then there, too, whole until the last micro-batch."""
    live_at_most: float = 0.0
    """Elements of gathered weights that it lets be there at once, if not one parameter and the next are more; 0 where
    these are of two blocks.
    """
    fetches_at_most: float = 0.0
    """Elements of these that are gathered ahead into one tensor, from which each parameter is then copied."""
    stream: bool = False
    """Whether tensor ranks split the residual stream by positions."""
    gathers: bool = False
    """Whether they then gather a product's input again in the backward, instead of keeping it whole."""
    vocabulary: bool = True
    """Whether they split the logits; else each has all of them."""
    scores: bool = False
    """Whether attention keeps its scores."""
    fuses: tuple[str, str] | None = None
    """Section and name of the setting with which attention is one kernel, which keeps no scores."""
    autocast: bool = True
    """Whether bf16 is autocast's where the case asks for that, with weights, residual stream and gradients in fp32 and
    a cast of each weight kept; else weights are bf16 beside fp32 masters.
    """
    masters: Literal["beside halves", "always"] = "beside halves"
    """When the optimizer has a copy of its share of the weights in fp32: beside weights in bf16 or fp16, or also beside
    those in fp32.
    """
    gradients: Literal["masters", "weights"] = "masters"
    """Whose format gradients are summed in, where weights are bf16 or fp16 without autocast."""
    flattens_at_most: float = 0.0
    """Elements of a rank's gradients that the optimizer copies at once, and then has in fp32 as well; 0 where it takes
    them as they are.
    """
    bucket: int = 0
    """Elements of a buffer in which gradients are reduced, whatever a network's size; 0 where they are where they are
    summed, and on their way those of what is gathered.
    """
    buckets: int = 1
    """Number of such buffers at once, with those that are made to send one."""
    reduces: Literal["in the backward", "after it"] = "in the backward"
    """When these are there."""
    copies: bool = True
    """Whether a rank copies its own share of the weights in bf16 or fp16, too, or only what it gathers."""
    flights: Literal["all", "stage"] = "stage"
    """Micro-batches in flight of a pipeline, all of them or one a stage."""
    again: Literal["block", "stage"] = "block"
    """Memory that recomputation holds at once, of a stage as was seen of PyTorch's pipelines."""
    built: Literal["device", "host", "parts"] = "device"
    """Where each rank makes the whole network first, or that it makes its parts only."""


class Unavailable(EngineError):
    """A comparison can't be run here, for want of a package, a compiler or a like network: the sentence says."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One peer against one grid of ours."""

    name: str
    peer: str
    grid: Grid
    built_by: str
    """Class as "module:class", which ranks alone load."""
    axes: tuple[str, ...] = ()
    """Axes that may be larger than 1, as the peer has nothing like the others."""
    target: float | None = 0.95
    """Largest ratio of medians, our step time by the peer's, that is aimed at; None where it is only reported."""
    ties: bool = True
    """Whether it keeps one table for token embedding and head where the network has one."""
    tunes: bool = False
    """Whether the engine's side is tuned (--tune-matmul)."""
    library: str | None = None
    """Library in whose environment the peer runs, if not in ours."""
    splits: tuple[Split, ...] = ()
    """Splits of ranks, where a peer splits them its own way; any grid of as many ranks is a match then."""
    layout: PeerLayout | None = None
    """Split of the peer's ranks, a grid where it has no splits; None where it does what our grid does."""
    does: str = ""
    """Parts of the work, and how it does them."""
    about: Split | None = None
    """Split without which it is another comparison of its library."""
    families: tuple[str, ...] | None = None
    """Families of networks that it has; None where it is made of our serial model, whatever that is."""
    recomputes: bool = True
    """Whether it computes activations again."""
    scales_loss: bool = False
    """Whether it trains in fp16, whose loss is scaled."""
    together: bool = False
    """Whether it recomputes several blocks at once, as --checkpoint-every N does."""
    sums_in_fp32: bool = False
    """Whether it can sum gradients in fp32 beside a computation in bf16."""
    chunks: int = 1
    """Pipeline stages of each rank."""
    fills_stages: bool = False
    """Whether its pipeline takes no fewer micro-batches than stages."""
    checkout: str | None = None
    """Folder of another commit of the engine, which is the peer, on our grid."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of its class."""
    memory: Habits | None = None
    """None where it uses memory as the engine does."""

    @property
    def external(self) -> bool:
        """Whether the peer has processes of its own."""
        return bool(self.splits or self.checkout)

    def implementation(self) -> Callable[..., Any]:
        """Load the peer's class, with its arguments."""
        module, _, name = self.built_by.partition(":")
        return partial(getattr(import_module(module), name), **self.arguments)

    def supports(self, model: Architecture) -> bool:
        """Say whether the peer has such networks."""
        return self.families is None or model.family in self.families

    def lacking(
        self,
        model: Architecture,
        *,
        recompute: int,
        own: Sequence[str] = (),
        widens: bool = False,
        precision: PrecisionName = "fp32",
    ) -> str | None:
        """Say in a sentence why the peer has nothing like that training; None where it has. recompute: blocks
        together. own: words of options that only the engine has. widens: whether sums are wider than the computation.
        """
        if precision == "fp16" and not self.scales_loss:
            return f"{self.name} is compared in no fp16, as nothing scales its loss here: take another --precision."
        if own and not self.checkout:
            return f"{self.name} has nothing like {' '.join(own)}: compare without, or --against another commit."
        if self.families is not None and not self.supports(model):
            return f"{self.name} has no {model.family}: compare a {' or a '.join(self.families)}."
        if recompute and not self.recomputes:
            return f"{self.name} computes no activations again: compare without --checkpoint-activations."
        if widens and not self.sums_in_fp32:
            return f"{self.name} sums gradients in the computation's format alone: compare without --reduce-dtype fp32."
        if recompute > 1 and not self.together:
            return f"{self.name} computes each block again by itself: compare with --checkpoint-every 1."
        if isinstance(self.layout, Layout) and model.layers % (stages := self.layout.pipeline * self.chunks):
            return f"{self.name} on {self.layout} has {stages} stages, into which {model.layers} layers can't be cut."
        return None

    def check(self, model: Architecture) -> None:
        """Raise UsageError if the peer has that network, but can't train it as the engine does."""
        if getattr(model, "dropout", 0):
            raise UsageError("Peers draw other dropout masks than the engine: compare without --dropout.")
        if model.ties and not self.ties and self.lacking(model, recompute=0) is None:
            raise UsageError(f"{self.name} makes two tables of a tied one: compare a network that isn't tied.")

    def with_grid(self, grid: Grid) -> "Comparison":
        """Return the same comparison on another grid. Raises UsageError if the peer can't do what that grid does."""
        if self.splits:
            return replace(self, grid=grid, layout=usual(grid.size, self.splits))
        if beyond := [axis.value for axis in Axis if grid[axis] > 1 and axis.value not in self.axes]:
            allowed = f"only {' and '.join(self.axes)}" if self.axes else "no axis"
            raise UsageError(
                f"{self.name} is no match for grid {grid}: {allowed} may be larger than 1, but {' and '.join(beyond)} "
                f"{'are' if len(beyond) > 1 else 'is'}."
            )
        return replace(self, grid=grid)

    def with_layout(self, layout: PeerLayout, grid: Grid) -> "Comparison":
        """Return the same comparison with another layout of the peer against a grid of as many ranks. Raises UsageError
        if the peer can't do that.
        """
        if isinstance(layout, Grid) is bool(self.splits):
            takes = f"some of {', '.join(self.splits)}" if self.splits else "a grid"
            raise UsageError(f"The layout of {self.name} is {takes}, but {layout} was given.")
        if layout.size != grid.size:
            raise UsageError(
                f"The layout {layout} has {layout.size} ranks, but the grid {grid} has {grid.size}: both sides take as "
                "many."
            )
        if isinstance(layout, Grid):
            return replace(self.with_grid(layout), grid=grid, layout=layout)
        if beyond := [name for name in SPLITS if getattr(layout, name) > 1 and name not in self.splits]:
            raise UsageError(
                f"{self.name} has no {' and no '.join(beyond)} ranks, but the layout {layout} was given: it splits by "
                f"{' and '.join(self.splits)}."
            )
        return replace(self, grid=grid, layout=layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Timeouts):
    """How often both sides are timed.

    A round is `steps` steps of one side, then of the other. A job is a set of processes with `rounds` rounds. There are
    several jobs, one after the other: where a process happens to place its memory makes one side faster by 1 % for as
    long as it lives. Of sides that are apart each goes first in every other job; where a launcher has started the ranks
    half of the engine's rounds come before the peer's and half after (apart.py).
    """

    jobs: int = 4
    """fresh sets of processes"""
    rounds: int = 6
    """of each job"""
    steps: Annotated[int, Parameter(name="--steps-per-round")] = 2
    """of each side"""
    warmup: int = 3
    """untimed steps of a side, each time that it is built, whose losses are compared"""
    threads: int = 1
    """of each rank"""
    timeout_s: Annotated[Seconds, Parameter(name="--timeout")] = 600.0
    """for the steps of a side's round"""
    meeting_timeout_s: Annotated[Seconds, Parameter(name="--meeting-timeout")] = MEETING_S
    """for all ranks to be there, and for a side to be built and warmed up"""
    apart: Annotated[bool | None, Parameter(negative="--at-once")] = None
    """one side after the other, or both at once (default: at once where a device holds both)"""
    peak_flops: Annotated[float | None, Parameter(metavar="FLOPS")] = None
    """advertised peak of one device, for MFU"""
    empirical_peak_flops: Annotated[float | None, Parameter(metavar="FLOPS")] = None
    """what matrix products reach on one device"""
    measure_peak: bool = False
    """measure that first, on all ranks at once"""
    breakdown: bool = False
    """profile a round more of each side, and part its step into compute, hidden and exposed communication"""


SHARED = ("precision", "checkpoint_activations", "checkpoint_every", "offload", "reduce_dtype")
"""Options of training that peers have, or that are the same in every contest."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PeerTraining(TrainingOptions):
    """Options of what both sides train, with nothing offloaded."""

    precision: PrecisionName = "fp32"
    """bf16 and fp16 keep fp32 masters; in fp16, for some peers, both sides have the same fixed --loss-scale"""
    offload: Annotated[bool, NO_OPTION] = False
    reduce_dtype: Literal["compute", "fp32"] = "compute"  # type: ignore[assignment]
    """gradients while summed, of both sides: the precision, or fp32 with peers that can"""


def both_sides(options: TrainingOptions) -> TrainingOptions:
    """Return these options without offloading, which no peer has, and with the usual sums, whose format contests give
    by themselves.
    """
    return replace(options, offload=False, reduce_dtype=None)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SideOptions:
    """Options of one side of a contest, or of the machine that both share."""

    tune_matmul: bool = False
    """of ours, as in train; what a job before has timed is kept"""
    loss_scale: Annotated[float, Parameter(metavar="SCALE")] = FIRST_LOSS_SCALE
    """of fp16, on both sides in every step; a side that skips a step ends the contest"""
    peer_micro_batch: Annotated[int | None, Parameter(metavar="SEQS")] = None
    """the peer's, where it isn't ours (of a pipeline by default 4 parts a stage)"""
    autocast: bool = False
    """peers of PyTorch in bf16 by autocast beside fp32 parameters, instead of in bf16 throughout as ours"""
    device: DeviceName = "auto"
    device_memory: Bytes | None = None
    """of one device: a contest that doesn't fit is skipped, with its reason (default: a GPU's, else endless)"""
    node_memory: Bytes | None = None
    """of a node's processors, on which some peers make whole networks first (default: endless)"""
    devices_per_node: int | None = None
    """for --node-memory (default: all of a contest)"""
    despite_estimate: bool = False
    """run contests that don't fit by the estimate of memory, too, such as of micro-batches that ran elsewhere"""


@dataclass(frozen=True)
class Case(Sampling, SideOptions, Training):
    """Training of both sides, and how often it is timed."""

    _: KW_ONLY
    reduce_dtype: ReduceDtype | None = "compute"  # type: ignore[assignment]
    overlap: Overlap = ALL

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        Training.__post_init__(self)

    @property
    def peer_batch(self) -> Batch:
        """Batch as a rank of the peer takes it."""
        return Batch(self.batch.sequences, self.peer_micro_batch)

    @property
    def own(self) -> list[str]:
        """Words of the options that no peer has but another commit of the engine."""
        shared = {name: getattr(TrainingOptions(), name) for name in SHARED}
        return replace(self.asked(), **shared).words()

    @property
    def sums(self) -> dict[str, str]:
        """Format in which gradients are summed, by the name of its option."""
        return {"reduce_dtype": reduce_dtype(self.precision, 1, self.reduce_dtype)}

    @property
    def widens(self) -> bool:
        """Whether gradients are summed in a wider format than the computation's."""
        return self.sums["reduce_dtype"] != self.precision

    @property
    def bytes_of_sums(self) -> int:
        """Bytes of an element of gradients while they are summed."""
        return BYTES[self.sums["reduce_dtype"]]

    @property
    def collective_timeout(self) -> timedelta:
        """Time-out of collectives, no less than a turn's limit, which ends a stalled side (watchdog.py)."""
        return timedelta(seconds=max(self.timeout_s, self.meeting_timeout_s))
