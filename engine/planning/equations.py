"""The equations of axonn-sc24 V-B (par4d V) price the collectives of linear layers. No torch.

A Link that has a bandwidth and no latency gives the papers' form; a real Link is priced by the same code.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.comm.collective import Kind
from engine.grid import Axis, Grid
from engine.simulator.collectives import Links, ring_s


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer computes O = I W with I [m, k] and W [k, n], where m counts the rows of ONE data group.

    element: bytes of an element. In a transposed layer x and y change places.
    """

    m: int
    k: int
    n: int
    element: int
    transposed: bool = False

    @property
    def out_axis(self) -> Axis:
        """This axis splits n; it is x in the equations."""
        return Axis.Y if self.transposed else Axis.X

    @property
    def in_axis(self) -> Axis:
        """This axis splits k; it is y in the equations."""
        return Axis.X if self.transposed else Axis.Y

    def shard(self, grid: Grid) -> float:
        """Count the bytes of a rank's shard of W."""
        return self.k * self.n / (grid.x * grid.y * grid.z) * self.element


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
    num_bytes = layer.m * layer.n / (grid.z * grid[layer.out_axis]) * layer.element
    return ring_s(Kind.ALL_REDUCE, num_bytes, grid[layer.in_axis], links[layer.in_axis])


def all_reduce_x(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dI is summed over the axis that splits n: t_AR,x of axonn-sc24 Eq. 4, par4d Eq. 7.

    2 (Gx - 1) / (beta Gx) * m k / (Gz Gy)
    """
    num_bytes = layer.m * layer.k / (grid.z * grid[layer.in_axis]) * layer.element
    return ring_s(Kind.ALL_REDUCE, num_bytes, grid[layer.out_axis], links[layer.out_axis])


def all_reduce_data(layer: Layer, grid: Grid, links: Links) -> float:
    """Return the seconds in which dW is summed over data: t_AR,data of axonn-sc24 Eq. 5, par4d Eq. 8.

    2 (Gdata - 1) / (beta Gdata) * k n / (Gx Gy Gz)
    """
    return ring_s(Kind.ALL_REDUCE, layer.shard(grid), grid.data, links[Axis.DATA])


EQUATIONS = (all_gather_z, reduce_scatter_z, all_reduce_y, all_reduce_x, all_reduce_data)
"""The sum of these is t_comm of one layer: axonn-sc24 Eq. 6, par4d Eq. 9."""


def axis_of(equation: Callable[[Layer, Grid, Links], float], layer: Layer) -> Axis:
    """Return the axis that the equation's collective runs along; x and y change places in a transposed layer."""
    if equation in (all_reduce_y, all_reduce_x):
        return layer.in_axis if equation is all_reduce_y else layer.out_axis
    return Axis.DATA if equation is all_reduce_data else Axis.Z
