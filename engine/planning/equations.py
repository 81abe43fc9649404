"""What the collectives of linear layers cost by the equations of axonn-sc24 V-B (par4d V). No torch in it.

The papers' form is a Link that has a bandwidth and nothing else: Eq. 1 to 6 are computed by the same code with a real
one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.comm.collective import Kind
from engine.grid import Axis, Grid
from engine.simulator.collectives import Links, ring_s


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer O = I W with I [m, k] and W [k, n]. m: rows of ONE data group. element: bytes of an element.

    In a transposed layer x and y change places.
    """

    m: int
    k: int
    n: int
    element: int
    transposed: bool = False

    @property
    def out_axis(self) -> Axis:
        """That splits n: "x" in the equations."""
        return Axis.Y if self.transposed else Axis.X

    @property
    def in_axis(self) -> Axis:
        """That splits k: "y" in the equations."""
        return Axis.X if self.transposed else Axis.Y

    def shard(self, grid: Grid) -> float:
        """Bytes of a rank's shard of W."""
        return self.k * self.n / (grid.x * grid.y * grid.z) * self.element


def all_gather_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_AG,z: W gathered over z (axonn-sc24 Eq. 1, par4d Eq. 4).

    (Gz - 1) / beta * k n / (Gx Gy Gz).
    """
    return ring_s(Kind.ALL_GATHER, layer.shard(grid), grid.z, links[Axis.Z])


def reduce_scatter_z(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_RS,z: dW summed and scattered over z (axonn-sc24 Eq. 2, par4d Eq. 5).

    (Gz - 1) / (beta Gz) * k n / (Gx Gy).
    """
    return ring_s(Kind.REDUCE_SCATTER, layer.shard(grid) * grid.z, grid.z, links[Axis.Z])


def all_reduce_y(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_AR,y: O summed over the axis that splits k (axonn-sc24 Eq. 3, par4d Eq. 6).

    2 (Gy - 1) / (beta Gy) * m n / (Gz Gx).
    """
    num_bytes = layer.m * layer.n / (grid.z * grid[layer.out_axis]) * layer.element
    return ring_s(Kind.ALL_REDUCE, num_bytes, grid[layer.in_axis], links[layer.in_axis])


def all_reduce_x(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_AR,x: dI summed over the axis that splits n (axonn-sc24 Eq. 4, par4d Eq. 7).

    2 (Gx - 1) / (beta Gx) * m k / (Gz Gy).
    """
    num_bytes = layer.m * layer.k / (grid.z * grid[layer.in_axis]) * layer.element
    return ring_s(Kind.ALL_REDUCE, num_bytes, grid[layer.out_axis], links[layer.out_axis])


def all_reduce_data(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_AR,data: dW summed over data (axonn-sc24 Eq. 5, par4d Eq. 8).

    2 (Gdata - 1) / (beta Gdata) * k n / (Gx Gy Gz).
    """
    return ring_s(Kind.ALL_REDUCE, layer.shard(grid), grid.data, links[Axis.DATA])


EQUATIONS = (all_gather_z, reduce_scatter_z, all_reduce_y, all_reduce_x, all_reduce_data)


def axis_of(equation: Callable[[Layer, Grid, Links], float], layer: Layer) -> Axis:
    """The axis that the collective of an equation runs along: x and y change places in a transposed layer."""
    if equation in (all_reduce_y, all_reduce_x):
        return layer.in_axis if equation is all_reduce_y else layer.out_axis
    return Axis.DATA if equation is all_reduce_data else Axis.Z


def layer_s(layer: Layer, grid: Grid, links: Links) -> float:
    """Seconds of t_comm of one layer: the sum of Eq. 1 to 5 (axonn-sc24 Eq. 6, par4d Eq. 9)."""
    return sum(equation(layer, grid, links) for equation in EQUATIONS)
