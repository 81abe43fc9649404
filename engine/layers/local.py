"""Rank's part of a layer, of which the layers of the grid are made."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from engine.comm.funnel import Comm
from engine.layers.matmul import Kernels
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight
from engine.placement import Placement
from engine.tensor_mode import TensorMode


@dataclass(frozen=True, slots=True)
class Local:
    """Rank's part of a layer. Placements and parameters go by their names in it, such as "weight".

    sharded: those parameters that are sharded over z. kernels: how the layer multiplies.
    """

    name: str
    comm: Comm
    schedule: WeightSchedule
    placements: Mapping[str, Placement]
    parameters: Mapping[str, nn.Parameter]
    sharded: Mapping[str, ShardedWeight]
    kernels: Kernels
    mode: TensorMode
