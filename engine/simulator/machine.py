"""A model of a machine says how long a product, a sweep over memory or a collective takes. No torch in it.

Peaks, memory and network bandwidths come from systems/, as measured or published. No data sheet gives four more
numbers, which are fitted to measured times (validation/calibrate.py) and kept there with the rows they were fitted to:

    products    the share of the empirical peak that products of a training step reach, where they fill the device
    link        the share of the network's bandwidth that collectives between nodes reach
    fading      the loss of that bandwidth with each doubling of a ring's ranks (collectives.Link)
    slowdown    the part by which compute is slower while a collective is in flight; 0 on processors where the time
                that collectives take of them was measured
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import cbrt, ceil, log
from typing import NamedTuple

from engine.comm.collective import Kind
from engine.errors import UsageError
from engine.grid import CUTTING_STAGES, Axis, Grid
from engine.overlap.flags import HOP_S
from engine.simulator.bandwidth import Bandwidths, bandwidths, lacking
from engine.simulator.collectives import WITHIN_NODE, Link, Links, Taken, ring_s
from engine.simulator.events import Compute, Convolution, MatrixProduct, Sweep
from systems import Dtype, Measured, OfProcessor, System
from systems.store import Name

KERNEL_S = 4e-6
"""Seconds that a kernel takes at least, where that was not measured."""
NOTHING = Taken(0.0, 0.0)
TILE = 128
"""Rows and columns of a product's tile, which one processor of a device computes: of 64 to 256 that libraries have."""
RAMP = 128
"""A tile takes as long as if k were so much larger, for it begins when the first pieces of both factors have come: four
stages of 32 (CUTLASS, efficient GEMM, pipelining).
"""
SPLITS = (1, 2, 4, 8)
"""Into so many parts k is cut where that keeps more processors busy."""
ATTENTION = 0.69
"""Fused attention reaches this share of the empirical peak of products: FlashAttention-2 (Dao 2023, abstract) reaches
50 to 73 % of an A100's 312 Tflop/s, of which products reach 280; the middle is taken. It was measured nowhere else.
"""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Numbers of the file's head. spread: nine times in ten a time is within the factor 1 + spread."""

    products: float = 0.8
    link: float = 0.7
    fading: float = 0.05
    slowdown: float = 0.1
    spread: float = 0.6


class Message(NamedTuple):
    """Cost of a message."""

    seconds: float
    """Seconds of the link."""
    processor_s: float
    """Seconds of a rank's share of a core, of sender and receiver together; 0 on accelerators."""


@dataclass(frozen=True, slots=True)
class MachineModel:
    """One system in one number format."""

    name: str
    peak_flops: float
    """Peak of a device, flop/s, to which utilisation refers."""
    empirical_peak: float
    """Rate that products reach."""
    memory_bytes_per_s: float
    device_memory: float | None
    bandwidths: Bandwidths
    fitted: Fitted = Fitted()
    modes: Mapping[str, float] = field(default_factory=dict)
    """Share of that rate which a mode reaches."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Share of the bandwidth between nodes that a kind of collective reaches."""
    kinds_within: Mapping[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)
    """The same within a node, by the pairs of Bandwidths.intra."""
    step_s: float = HOP_S
    """Latency of a ring's step."""
    step_within_s: float | None = None
    """Latency of a step within a node, where it was measured."""
    half_bytes: float = 0.0
    attention: float = ATTENTION
    """Share of the empirical peak that fused attention reaches."""
    sweeps: float = 1.0
    """Share of the memory's rate that kernels reach which only read and write."""
    kernel_s: float = KERNEL_S
    """Least time of a kernel."""
    launches_itself: bool = False
    """Whether the device launches its kernels, and works on none meanwhile, as processors do."""
    by_size: Sequence[tuple[float, float]] = ()
    """(rows, flop/s) of square products, from few rows to many, instead of empirical_peak where it was measured."""
    ranks_per_core: float = 1.0
    """Ranks that take turns on a core; each figure of a device is of a rank's share."""
    taken: Mapping[str, Taken] = field(default_factory=dict)
    """Processor time that each kind of collective takes between nodes; empty for accelerators."""
    taken_within: Mapping[str, Taken] = field(default_factory=dict)
    processors: int | None = None
    """Multiprocessors of an accelerator, or its compute units, each of which computes a tile of a product at a time;
    None where unknown.
    """

    def compute_s(self, event: Compute) -> float:
        """Give the seconds on a device that does nothing else. A convolution is as fast as the product of its implicit
        GEMM, beside the time for its own bytes.
        """
        bytes_s = event.num_bytes / self.memory_bytes_per_s
        if isinstance(event, Sweep):
            return self._with_launches(bytes_s / self.sweeps, event.kernels)
        mode = self.modes.get(event.mode, 1.0) if isinstance(event, MatrixProduct | Convolution) else 1.0
        if self.processors is None:
            rate = self.fitted.products * self._reached(event.flops) * mode
            return self._with_launches(event.flops / rate + bytes_s, 1)
        if isinstance(event, MatrixProduct | Convolution):
            work_s = self._in_waves_s(event, self.processors) / mode
        else:
            work_s = event.flops / (self.attention * self.empirical_peak)
        return self._with_launches(max(work_s, bytes_s), 1)  # a kernel loads while it multiplies

    def _in_waves_s(self, product: MatrixProduct | Convolution, processors: int) -> float:
        """Give the seconds of a product's tiles, one a processor at a time, so that the last wave may leave some idle
        (NVIDIA, Matrix Multiplication Background User's Guide, tile and wave quantization).
        """
        tiles = ceil(product.m / TILE) * ceil(product.n / TILE)
        depth = min(ceil(tiles * parts / processors) * (product.k / parts + RAMP) for parts in SPLITS)
        return 2 * TILE**2 * depth * processors / (self.fitted.products * self.empirical_peak)

    def _with_launches(self, work_s: float, kernels: int) -> float:
        """Add the launches of kernels, which are hidden behind longer work but on processors."""
        launches_s = kernels * self.kernel_s
        return work_s + launches_s if self.launches_itself else max(work_s, launches_s)

    def _reached(self, flops: float) -> float:
        """Give the flop/s of a square product of so many flops, interpolated in the logarithm of its rows."""
        if not self.by_size:
            return self.empirical_peak
        rows = cbrt(flops / 2)
        at = bisect(self.by_size, (rows,))
        if at in (0, len(self.by_size)):
            return self.by_size[max(0, at - 1)][1]
        (fewer, low), (more, high) = self.by_size[at - 1 : at + 1]
        return low + (high - low) * log(rows / fewer) / log(more / fewer)

    def link(self, grid: Grid, axis: Axis) -> Link:
        """Give what one group of the axis finds while all of them, and no other axis, communicate."""
        bandwidth = self.bandwidths.in_a_run(grid, axis, self.fitted.link)
        return self._link(bandwidth, leaves_node=self.bandwidths.leaves_node(grid, axis))

    def _link(self, bandwidth: float, *, leaves_node: bool) -> Link:
        if leaves_node:
            return Link(bandwidth, self.step_s, self.half_bytes, self.fitted.fading)
        if self.step_within_s is not None:
            return Link(bandwidth, self.step_within_s)
        return Link(bandwidth, self.step_s * WITHIN_NODE, self.half_bytes)

    def links(self, grid: Grid) -> Links:
        """Give the links of all axes."""
        return self.bandwidths.links(
            grid,
            lambda axis: self.link(grid, axis),
            lambda leaves: self._message_link(grid, CUTTING_STAGES, leaves_node=leaves),
        )

    def collective_s(self, kind: str, num_bytes: float, grid: Grid, axis: Axis) -> float:
        """Give the seconds of a collective along the axis while no other axis uses its link."""
        link, kinds = self.link(grid, axis), self.kinds
        if not self.bandwidths.leaves_node(grid, axis):
            kinds = self.kinds_within.get((grid.stride(axis), grid[axis]), {})
        reached = replace(link, bytes_per_s=link.bytes_per_s * kinds.get(kind, 1.0))
        return ring_s(Kind(kind), num_bytes, grid[axis], reached)

    def message(self, num_bytes: float, grid: Grid, axis: Axis, one: int, other: int) -> Message:
        """Give what a message takes along the axis, between ranks at these two coordinates and of one lane alone."""
        leaves_node = self.bandwidths.on_two_nodes(grid, axis, one, other)
        link = self._message_link(grid, axis, leaves_node=leaves_node)
        taken = self._taken(Kind.ALL_GATHER, leaves_node=leaves_node)
        return Message(ring_s(Kind.SEND, num_bytes, 2, link), self.ranks_per_core * taken.of(Kind.SEND, num_bytes, 2))

    def _message_link(self, grid: Grid, axis: Axis, *, leaves_node: bool) -> Link:
        """Give what a message finds: what a step of an all-gather does, in which a rank sends and receives."""
        kinds = self.kinds if leaves_node else self.kinds_within.get((grid.stride(axis), 2), {})
        bandwidth = self.bandwidths.of_message(grid, axis, leaves_node=leaves_node, link=self.fitted.link)
        return self._link(bandwidth * kinds.get(Kind.ALL_GATHER, 1.0), leaves_node=leaves_node)

    def processor_s(self, kind: str, num_bytes: float, grid: Grid, axis: Axis) -> float:
        """Give the seconds that the collective takes of a rank's share of a core; 0 on accelerators."""
        taken = self._taken(kind, leaves_node=self.bandwidths.leaves_node(grid, axis))
        return self.ranks_per_core * taken.of(Kind(kind), num_bytes, grid[axis]) if grid[axis] > 1 else 0.0

    def _taken(self, kind: str, *, leaves_node: bool) -> Taken:
        """Give what a kind of collective takes of a processor, where it wasn't measured that of an all-reduce."""
        taken = self.taken if leaves_node else self.taken_within
        return taken.get(kind) or taken.get(Kind.ALL_REDUCE) or NOTHING

    @classmethod
    def of(
        cls, system: System, precision: Dtype, measured: Measured | None, ranks: int | None = None
    ) -> "MachineModel":
        """Make the model from a system's file and what was measured there. Raises UsageError that names missing facts.

        A calibration comes before numbers of the file, which were fitted to published times. With neither they are
        what devices of the kind reach, where that is known, or the usual ones (Fitted), and the interval is wide.
        ranks: of the job, where fewer share cores than were calibrated.
        """
        if measured is not None and measured.performance is None and system.performance is not None:
            measured = None  # the file's numbers were fitted with the file's links
        device, own = system.device, (measured and measured.performance) or system.performance
        empirical = device.empirical_peak_flops.get(precision) or (own and own.peak_flops.get(precision))
        peak = device.peak_flops.get(precision) or empirical
        memory = (own and own.memory_bytes_per_s) or device.memory_bytes_per_s
        facts = {f"device.peak_flops.{precision}": peak, "device.memory_bytes_per_s": memory}
        if missing := [name for name, fact in facts.items() if not fact] + lacking(system, measured):
            add = f"add {'them' if len(missing) > 1 else 'it'} with the source to systems/{system.name}.yaml"
            calibrated = precision == ("fp32" if device.kind == "cpu" else "bf16") and own is None
            raise UsageError(
                f"To predict times on {system.name} in {precision} its file lacks {' and '.join(missing)}: "
                f"{f'run par4d calibrate --system {system.name} there, or {add}' if calibrated else add}."
            )
        assert peak
        assert memory
        shared = own.shared if own else None
        turns = shared.ranks_per_core(ranks or shared.ranks) if shared else 1.0
        more = (
            shared.ranks_per_core(shared.ranks) / turns if shared else 1.0
        )  # a rank has so many times the core it had
        between = measured.inter if measured else None
        sizes = own.by_size.get(precision, {}) if own else {}
        found = cls(
            name=system.name,
            peak_flops=more * peak.value,
            empirical_peak=more * (empirical or peak).value,
            memory_bytes_per_s=more * memory.value,
            device_memory=device.memory_bytes.value if device.memory_bytes else None,
            bandwidths=bandwidths(system, measured),
            fitted=Fitted(**{one.name: getattr(own, one.name) for one in fields(Fitted)}) if own else Fitted(),
            modes={mode: fact.value for mode, fact in own.modes.items()} if own else {},
            kinds={kind: rate / between.bytes_per_s for kind, rate in between.kinds.items()} if between else {},
            kinds_within=measured.kinds_of() if measured else {},
            step_s=between.step_s if between else HOP_S,
            step_within_s=measured.intra_step_s if measured else None,
            half_bytes=between.half_bytes if between else 0.0,
            kernel_s=own.kernel_s.value / more if own and own.kernel_s else KERNEL_S,
            launches_itself=device.kind == "cpu",
            by_size=tuple(sorted((float(rows), more * rate) for rows, rate in sizes.items())),
            ranks_per_core=turns,
            taken=_kinds_taken(between.processor) if between else {},
            taken_within=_kinds_taken(measured.intra_processor) if measured else {},
            processors=device.processors.value if device.processors else None,
        )
        reached = None if own else device.reached.get(precision)
        return found.reaching({name: share.value for name, share in reached}) if reached else found

    def with_fitted(self, fitted: Fitted) -> "MachineModel":
        return replace(self, fitted=fitted)

    def reaching(self, shares: Mapping[str, float]) -> "MachineModel":
        """Return the machine with these shares of the data sheet, by the names of systems.device.Reached."""
        others = {"attention": "attention", "memory": "sweeps"}
        products = {"products": shares["products"]} if "products" in shares else {}
        return replace(
            self,
            empirical_peak=self.peak_flops,
            fitted=replace(self.fitted, **products),
            **{others[name]: value for name, value in shares.items() if name in others},  # type: ignore[arg-type]
        )


def _kinds_taken(measured: Mapping[Name, OfProcessor]) -> dict[str, Taken]:
    return {kind: Taken(found.step_s, found.byte_s) for kind, found in measured.items()}
