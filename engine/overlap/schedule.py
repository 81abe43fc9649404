"""What a layer asks of its weights: gathered over z for use, and their gradients taken away to be summed.

One object, owned by the model, holds all state of the overlap: gathers ahead and kept (gathers.py), reductions in
flight (gradients.py). With Overlap() it waits for everything where it is issued: the numeric oracle.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.overlap.flags import Overlap
from engine.overlap.prefetch import Gathers
from engine.overlap.reduction import Fill, Gradients
from engine.overlap.weight import WeightBlock
from engine.precision import Precision


class WeightSchedule:
    """Algorithm 1, lines 2 and 14, as early and as late as the overlap says."""

    def __init__(self, comm: Comm, precision: Precision, overlap: Overlap) -> None:
        self.precision, self.overlap = precision, overlap
        self.gathers = Gathers(comm, precision.compute, overlap)
        self.gradients: Gradients
        self._comm = comm

    def own(self, blocks: Sequence[WeightBlock], replicated: Sequence[nn.Parameter]) -> None:
        """The parameters of the model, once they are all known."""
        self.gradients = Gradients(self._comm, blocks, replicated, self.precision, self.overlap)

    def gather(self, block: WeightBlock) -> Tensor:
        """The block [n, k] in the compute dtype."""
        return self.gathers.gather(block).view(block.shape)

    def accumulate(self, block: WeightBlock, fill: Fill, dtype: torch.dtype | None = None) -> None:
        """Add a layer's gradient [n, k] of this rank's rows, which fill makes in that dtype (the compute dtype)."""
        self.gradients.accumulate(block, fill, dtype or self.precision.compute)
