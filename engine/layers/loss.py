"""Cross-entropy over a vocabulary that the axis x splits, without ever gathering the logits.

Returns the SUM over this rank's rows; the caller divides by the tokens of the global batch, once. The backward needs
no collective. Logits are the largest activations there are: what the forward keeps of them becomes their gradient in
place, so that beside them there is one buffer of their size and no more.
"""

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.precision import at_least_fp32


class _CrossEntropy(torch.autograd.Function):
    """Rows held whole: one exponential an element, where a log-softmax and its gradient take two.

    The largest logit and its probability, which is never tiny, give the row's logarithm of the sum of exponentials.
    """

    @staticmethod
    def forward(ctx, logits_MV: Tensor, targets_M: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        wide, columns_M1 = _wide(logits_MV), targets_M.unsqueeze(1)
        likely_MV = torch.softmax(logits_MV, dim=1, dtype=wide)
        # The difference of logits comes first: it has few digits to lose where they are large and the loss is small.
        below_M = logits_MV.amax(dim=1).to(wide) - logits_MV.gather(1, columns_M1).squeeze(1).to(wide)
        loss = (below_M - likely_MV.amax(dim=1).log()).sum()
        ctx.save_for_backward(likely_MV.scatter_add_(1, columns_M1, -likely_MV.new_ones(columns_M1.shape)))
        ctx.dtype = logits_MV.dtype
        return loss

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (gradient_MV,) = ctx.saved_tensors
        return gradient_MV.mul_(dloss).to(ctx.dtype), None


class _SplitCrossEntropy(torch.autograd.Function):
    """Rows split over x."""

    @staticmethod
    def forward(ctx, logits_MV: Tensor, targets_M: Tensor, comm: Comm) -> Tensor:  # type: ignore[no-untyped-def]
        highest_M = comm.run(Kind.MAX_REDUCE, Axis.X, logits_MV.amax(dim=1).to(_wide(logits_MV)))
        shifted_MV = logits_MV - highest_M.unsqueeze(1)
        columns_M = targets_M - comm.coords.x * logits_MV.shape[1]
        held_M = (columns_M >= 0) & (columns_M < logits_MV.shape[1])
        columns_M = columns_M.where(held_M, 0)
        target_M = shifted_MV.gather(1, columns_M.unsqueeze(1)).squeeze(1) * held_M
        exp_MV = shifted_MV.exp_()
        sums_2M = comm.run(Kind.ALL_REDUCE, Axis.X, torch.stack([exp_MV.sum(dim=1), target_M]))
        ctx.save_for_backward(exp_MV, sums_2M[0], columns_M, held_M)
        ctx.dtype = logits_MV.dtype
        return (sums_2M[0].log() - sums_2M[1]).sum()

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        exp_MV, sum_M, columns_M, held_M = ctx.saved_tensors
        dlogits_MV = exp_MV.mul_((dloss / sum_M).unsqueeze(1))
        dlogits_MV.scatter_add_(1, columns_M.unsqueeze(1), (-dloss * held_M).unsqueeze(1))
        return dlogits_MV.to(ctx.dtype), None, None


class CrossEntropy(nn.Module):
    """Logits [M, V / Gx] and targets [M] -> the sum of the rows' losses in nats, a scalar, the same on all of x.

    In float32 at least.
    """

    def __init__(self, comm: Comm) -> None:
        super().__init__()
        self.comm = comm

    def forward(self, logits_MV: Tensor, targets_M: Tensor) -> Tensor:
        """Can be differentiated once."""
        if self.comm.grid.x == 1:
            return _CrossEntropy.apply(logits_MV, targets_M)
        return _SplitCrossEntropy.apply(logits_MV, targets_M, self.comm)


def _wide(tensor: Tensor) -> torch.dtype:
    return at_least_fp32(tensor[:0]).dtype
