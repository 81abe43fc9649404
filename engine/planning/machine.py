"""A machine as the simulator knows it: how long a product, a sweep over memory or a collective takes. No torch in it.

What was measured or published of the hardware comes from the system's file (systems/): peaks, memory and network
bandwidths. What no data sheet says is at most four numbers, fitted to measured times (calibrate.py) and kept in the
system's file with the rows that they were fitted to:

    products    of the empirical peak, what products of a training step reach beyond the time for their bytes
    link        of the network's bandwidth, what collectives between nodes reach
    fading      of that bandwidth, what each doubling of a ring's ranks costs
    slowdown    by how much compute is slower while a collective is in flight
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.comm.collective import Kind
from engine.grid import Axis, Grid
from engine.planning.bandwidth import Bandwidths
from engine.planning.collectives import Link, ring_s
from engine.planning.events import Attention, Product, Sweep

STEP_S = 1.4e-5
"""Latency of a ring's step between nodes, as NCCL has it for large messages (Simple, its tuning.cc)."""
KERNEL_S = 4e-6
"""The least that a kernel takes."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """See the file's head. spread: of the errors that are left; nine times in ten a time is within this factor."""

    products: float = 0.8
    link: float = 0.7
    fading: float = 0.0
    slowdown: float = 0.1
    spread: float = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """One system in one number format.

    peak_flops, empirical_peak: of a device, flop/s; the first is what utilisation is told of. modes: of the empirical
    peak, what products of a mode reach where that isn't all. step_s: latency of a ring's step. kernel_s: the least that
    a kernel takes.
    """

    name: str
    peak_flops: float
    empirical_peak: float
    memory_bytes_per_s: float
    device_memory: float | None
    bandwidths: Bandwidths
    fitted: Fitted = Fitted()
    modes: Mapping[str, float] = field(default_factory=dict)
    step_s: float = STEP_S
    half_bytes: float = 0.0
    kernel_s: float = KERNEL_S

    def compute_s(self, event: Product | Attention | Sweep) -> float:
        """Seconds on a device that does nothing else."""
        if isinstance(event, Sweep):
            return max(event.num_bytes / self.memory_bytes_per_s, event.kernels * self.kernel_s)
        rate = self.empirical_peak * self.fitted.products
        if isinstance(event, Product):
            rate *= self.modes.get(event.mode, 1.0)
        return max(event.flops / rate + event.num_bytes / self.memory_bytes_per_s, self.kernel_s)

    def leaves_node(self, grid: Grid, axis: Axis) -> bool:
        """Whether groups of the axis span several nodes."""
        return grid.stride(axis) * grid[axis] > self.bandwidths.devices_per_node

    def link(self, grid: Grid, axis: Axis) -> Link:
        """What one group of the axis finds while all of them, and no other axis, communicate."""
        bandwidth = self.bandwidths.along(grid, axis)
        if not self.leaves_node(grid, axis):
            return Link(bandwidth, self.step_s / 4, self.half_bytes)
        return Link(bandwidth * self.fitted.link, self.step_s, self.half_bytes, self.fitted.fading)

    def collective_s(self, kind: str, num_bytes: float, grid: Grid, axis: Axis) -> float:
        """Seconds of a collective along the axis that shares its link with nobody else's."""
        return ring_s(Kind(kind), num_bytes, grid[axis], self.link(grid, axis))

    def with_fitted(self, fitted: Fitted) -> "Machine":
        """The same hardware with other numbers."""
        return replace(self, fitted=fitted)
