"""When weights are gathered and their gradients reduced: one object, owned by the model.

The schedule here is the synchronous one, the numeric oracle: every collective is waited for where it is issued.
"""

import torch
from torch import Tensor, nn

from engine.comm import Comm, Kind
from engine.grid import Axis
from engine.placement import Placement
from engine.precision import Precision


class WeightBlock:
    """This rank's block of one weight matrix: its z shard, the shard's gradient, and the placement of both.

    A tied weight is one WeightBlock in two layers.
    """

    def __init__(self, placement: Placement, shard: nn.Parameter, shape: tuple[int, ...]) -> None:
        self.placement = placement
        self.shard = shard
        self.shape = shape
        self.gradient: Tensor = torch.empty(0)
        self.untouched = True
        """Whether the gradient still holds what the last step left, to be overwritten."""


class WeightSchedule:
    """Gathers weights over z and reduces their gradients over z (Algorithm 1, lines 2 and 14)."""

    def __init__(self, comm: Comm, precision: Precision) -> None:
        self.comm = comm
        self.precision = precision

    def gather(self, block: WeightBlock) -> Tensor:
        """The block [n, k] in the compute dtype. The shard is cast before it travels."""
        shard = block.shard.detach().to(self.precision.compute)
        return self.comm.run(Kind.ALL_GATHER, Axis.Z, shard).view(block.shape)

    def local_gradient(self, block: WeightBlock) -> tuple[Tensor, bool] | None:
        """Where a layer may sum its gradient itself, [n, k], and whether to overwrite what is there.

        None where the gradient has to be cast or reduced: then the layer hands it to reduce().
        """
        if self.comm.grid.z > 1 or block.shard.dtype != self.precision.compute:
            return None
        overwrite, block.untouched = block.untouched, False
        return block.gradient.view(block.shape), overwrite

    def reduce(self, block: WeightBlock, gradient: Tensor) -> None:
        """Sum the gradient [n, k] of this rank's rows over z and add this rank's shard to what it has.

        Micro-batches are summed in the master dtype.
        """
        flat = gradient.contiguous().view(-1).to(self.precision.reduce)
        if block.untouched and flat.dtype == block.gradient.dtype:
            self.comm.run(Kind.REDUCE_SCATTER, Axis.Z, flat, out=block.gradient)
        else:
            shard = self.comm.run(Kind.REDUCE_SCATTER, Axis.Z, flat)
            block.gradient.copy_(shard) if block.untouched else block.gradient.add_(shard)
        block.untouched = False
