"""Cross-entropy over a vocabulary that the axis x splits, without ever gathering the logits.

Returns the SUM over this rank's rows; the caller divides by the tokens of the global batch, once. The backward needs
no collective.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.precision import at_least_fp32


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_MV: Tensor, targets_M: Tensor, comm: Comm) -> Tensor:  # type: ignore[no-untyped-def]
        highest_M = comm.run(Kind.MAX_REDUCE, Axis.X, logits_MV.amax(dim=1))
        shifted_MV = logits_MV - highest_M.unsqueeze(1)
        columns_M = targets_M - comm.coords.x * logits_MV.shape[1]
        held_M = (columns_M >= 0) & (columns_M < logits_MV.shape[1])
        columns_M = columns_M.where(held_M, 0)
        target_M = shifted_MV.gather(1, columns_M.unsqueeze(1)).squeeze(1) * held_M
        exp_MV = shifted_MV.exp_()
        sums_2M = comm.run(Kind.ALL_REDUCE, Axis.X, torch.stack([exp_MV.sum(dim=1), target_M]))
        ctx.save_for_backward(exp_MV, sums_2M[0], columns_M, held_M)
        return (sums_2M[0].log() - sums_2M[1]).sum()

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        exp_MV, sum_M, columns_M, held_M = ctx.saved_tensors
        dlogits_MV = exp_MV * (dloss / sum_M).unsqueeze(1)
        dlogits_MV.scatter_add_(1, columns_M.unsqueeze(1), (-dloss * held_M).unsqueeze(1))
        return dlogits_MV, None, None


class CrossEntropy(nn.Module):
    """Logits [M, V / Gx] and targets [M] -> the sum of the rows' losses in nats, a scalar, the same on all of x."""

    def __init__(self, comm: Comm) -> None:
        super().__init__()
        self.comm = comm

    def forward(self, logits_MV: Tensor, targets_M: Tensor) -> Tensor:
        """In float32 at least."""
        logits_MV = at_least_fp32(logits_MV)
        if self.comm.grid.x == 1:
            return F.cross_entropy(logits_MV, targets_M, reduction="sum")
        return _CrossEntropy.apply(logits_MV, targets_M, self.comm)
