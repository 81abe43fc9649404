"""The equations of axonn-sc24 V-B (par4d V) price the collectives of linear layers. No torch.

A Link that has a bandwidth and no latency gives the papers' form; a real Link is priced by the same code.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.comm.collective import Kind
from engine.grid import Axis, Grid
from engine.placement import NORMAL
from engine.simulator.collectives import Links, ring_s


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer computes O = I W with I [m, k] and W [k, n], where m counts the rows of ONE data group.

    element: bytes of an element. split: the axes that split n and k, x and y in the equations; they change places in a
    transposed layer, and one that is None splits nothing. Of a convolution k and n are channels and rows are pixels
    (par4d III); window: elements of W for each pair of channels. rows_in: rows of I for each of O. reads_data: whether
    I is data, of which no gradient is made.
    """

    m: int
    k: int
    n: int
    element: int
    split: tuple[Axis | None, Axis | None] = NORMAL
    window: int = 1
    rows_in: float = 1
    reads_data: bool = False

    @property
    def out_axis(self) -> Axis | None:
        """Axis that splits n; x in the equations."""
        return self.split[0]

    @property
    def in_axis(self) -> Axis | None:
        """Axis that splits k; y in the equations."""
        return self.split[1]

    def shard(self, grid: Grid) -> float:
        """Count the bytes of a rank's shard of W."""
        parts = _ranks(grid, self.out_axis) * _ranks(grid, self.in_axis) * grid.z
        return self.k * self.n * self.window / parts * self.element


def _ranks(grid: Grid, axis: Axis | None) -> int:
    return 1 if axis is None else grid[axis]


def all_gather_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which W is gathered over z: t_AG,z of axonn-sc24 Eq. 1, par4d Eq. 4.

    (Gz - 1) / beta * k n / (Gx Gy Gz)
    """
    return ring_s(Kind.ALL_GATHER, layer.shard(grid), grid.z, links[Axis.Z])


def reduce_scatter_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dW is summed and scattered over z: t_RS,z of axonn-sc24 Eq. 2, par4d Eq. 5.

    (Gz - 1) / (beta Gz) * k n / (Gx Gy)
    """
    return ring_s(Kind.REDUCE_SCATTER, layer.shard(grid) * grid.z, grid.z, links[Axis.Z])


def all_reduce_y(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which O is summed over the axis that splits k: t_AR,y of axonn-sc24 Eq. 3, par4d Eq. 6.

    2 (Gy - 1) / (beta Gy) * m n / (Gz Gx)
    """
    num_bytes = layer.m * layer.n / (grid.z * _ranks(grid, layer.out_axis)) * layer.element
    return _sum(num_bytes, grid, layer.in_axis, links)


def all_reduce_x(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dI is summed over the axis that splits n: t_AR,x of axonn-sc24 Eq. 4, par4d Eq. 7.

    2 (Gx - 1) / (beta Gx) * m k / (Gz Gy)
    """
    rows = 0.0 if layer.reads_data else layer.m * layer.rows_in
    num_bytes = rows * layer.k / (grid.z * _ranks(grid, layer.in_axis)) * layer.element
    return _sum(num_bytes, grid, layer.out_axis, links)


def _sum(num_bytes: float, grid: Grid, axis: Axis | None, links: Links) -> float:
    return 0.0 if axis is None or not num_bytes else ring_s(Kind.ALL_REDUCE, num_bytes, grid[axis], links[axis])


def all_reduce_data(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dW is summed over data: t_AR,data of axonn-sc24 Eq. 5, par4d Eq. 8.

    2 (Gdata - 1) / (beta Gdata) * k n / (Gx Gy Gz)
    """
    return ring_s(Kind.ALL_REDUCE, layer.shard(grid), grid.data, links[Axis.DATA])


EQUATIONS = (all_gather_z, reduce_scatter_z, all_reduce_y, all_reduce_x, all_reduce_data)
"""The sum of these is t_comm of one layer: axonn-sc24 Eq. 6, par4d Eq. 9."""


def axis_of(equation: Callable[[Layer, Grid, Links], float], layer: Layer) -> Axis | None:
    """Return the axis that the equation's collective runs along, if any; x and y change places in a transposed one."""
    if equation in (all_reduce_y, all_reduce_x):
        return layer.in_axis if equation is all_reduce_y else layer.out_axis
    return Axis.DATA if equation is all_reduce_data else Axis.Z
