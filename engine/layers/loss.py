"""Cross-entropy over a vocabulary that an axis splits, without ever gathering the logits.

Returns the SUM over this rank's rows by a divisor, that of the tokens of the global batch. The backward needs no
collective. Logits are the largest activations there are, so they become their own gradient in place, some rows at a
time: the memory beside them is for those rows, which on a processor stay in its cache.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.batch import chunks
from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.layers.compiled import Compiled
from engine.precision import at_least_fp32


class _CrossEntropy(torch.autograd.Function):
    """Loss of whole rows. differentiate: whether a gradient is wanted, which is made at once."""

    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, divisor: float | Tensor, differentiate: bool, ignores: bool
    ) -> Tensor:
        if ignores:
            targets_M = _certain(logits_MV, targets_M, first=True)
        by = divisor if differentiate else None
        columns_M1 = targets_M.unsqueeze(1)
        losses = [of_whole_rows(logits_MV[rows], columns_M1[rows], by) for rows in _chunks(logits_MV)]
        ctx.save_for_backward(logits_MV)
        return reduce(torch.add, losses) / divisor

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient_MV,) = ctx.saved_tensors
        if not (dloss.is_cpu and dloss.item() == 1):  # elsewhere the host would wait for it
            gradient_MV.mul_(dloss)
        return gradient_MV, None, None, None, None


class _SplitCrossEntropy(torch.autograd.Function):
    """Loss of rows whose columns an axis splits: exponentials are made for the sums, and again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, divisor: float | Tensor, layer: "CrossEntropy"
    ) -> Tensor:
        comm, axis = layer.comm, layer.axis
        first = comm.coords[axis] * logits_MV.shape[1]
        if (own := max(0, layer.columns - first)) < logits_MV.shape[1]:
            logits_MV[:, own:].fill_(_lowest(logits_MV))
        if layer.ignores:
            targets_M = _certain(logits_MV, targets_M, first=first == 0)
        highest_M1 = comm.run(Kind.MAX_REDUCE, axis, at_least_fp32(logits_MV.amax(dim=1, keepdim=True)))
        columns_M1 = targets_M.unsqueeze(1) - first
        held_M1 = (columns_M1 >= 0) & (columns_M1 < logits_MV.shape[1])
        columns_M1 = columns_M1.where(held_M1, 0)
        parts = [of_split_rows(logits_MV[rows], columns_M1[rows], highest_M1[rows]) for rows in _chunks(logits_MV)]
        sums_M1, targets_M1 = map(torch.cat, zip(*parts, strict=True))
        sums_2M1 = comm.run(Kind.ALL_REDUCE, axis, torch.stack([sums_M1, targets_M1 * held_M1]))
        ctx.save_for_backward(logits_MV, highest_M1, sums_2M1[0], columns_M1, held_M1)
        ctx.divisor = divisor
        return (sums_2M1[0].log() - sums_2M1[1]).sum() / divisor

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None]:
        logits_MV, highest_M1, sums_M1, columns_M1, held_M1 = ctx.saved_tensors
        scale = (dloss / ctx.divisor).to(sums_M1.dtype)  # a count of the batch is in float64
        by_sum_M1, at_target_M1 = scale / sums_M1, -scale * held_M1
        for rows in _chunks(logits_MV):
            to_gradient(logits_MV[rows], highest_M1[rows], by_sum_M1[rows], columns_M1[rows], at_target_M1[rows])
        return logits_MV, None, None, None


def _of_whole_rows(logits_CV: Tensor, columns_C1: Tensor, divisor: float | Tensor | None) -> Tensor:
    """Sum the losses of whole rows; with a divisor the logits become their gradient, divided.

    One exponential an element, where a log-softmax and its gradient take two: the largest logit and its probability,
    which is never tiny, give the row's logarithm of the sum of exponentials.
    """
    likely_CV = torch.softmax(logits_CV, dim=1, dtype=_wide(logits_CV))
    # The difference of logits comes first: it has few digits to lose where they are large and the loss is small.
    below_C1 = at_least_fp32(logits_CV.amax(dim=1, keepdim=True)) - at_least_fp32(logits_CV.gather(1, columns_C1))
    loss = (below_C1 - likely_CV.amax(dim=1, keepdim=True).log()).sum()
    if divisor is not None:
        torch.div(likely_CV.scatter_(1, columns_C1, -1.0, reduce="add"), divisor, out=logits_CV)
    return loss


def _of_whole_rows_in_one_pass(logits_CV: Tensor, columns_C1: Tensor, divisor: float | Tensor | None) -> Tensor:
    """Sum the losses row by row in one kernel, which reads a row again while the caches have it.

    The target's logit is a sum with zeros: a gather would have to read all rows before any of them is overwritten.
    """
    wide_CV, at_CV = at_least_fp32(logits_CV), _at(columns_C1, logits_CV)
    highest_C1 = wide_CV.amax(dim=1, keepdim=True)
    sums_C1 = (wide_CV - highest_C1).exp().sum(dim=1, keepdim=True)
    targets_C1 = wide_CV.where(at_CV, 0).sum(dim=1, keepdim=True)
    loss = (highest_C1 - targets_C1 + sums_C1.log()).sum()
    if divisor is not None:
        likely_CV = (wide_CV - highest_C1).exp() / sums_C1
        logits_CV.copy_((likely_CV - at_CV.to(wide_CV.dtype)) / divisor)
    return loss


def _of_split_rows(logits_CV: Tensor, columns_C1: Tensor, highest_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Sum exponentials below the highest logit, and return the logit in a column below it, [C, 1] each."""
    below_CV = logits_CV - highest_C1
    target_C1 = below_CV.gather(1, columns_C1)
    return below_CV.exp_().sum(dim=1, keepdim=True), target_C1


def _to_gradient(
    logits_CV: Tensor, highest_C1: Tensor, by_sum_C1: Tensor, columns_C1: Tensor, at_target_C1: Tensor
) -> None:
    gradient_CV = (logits_CV - highest_C1).exp_().mul_(by_sum_C1)
    logits_CV.copy_(gradient_CV.scatter_add_(1, columns_C1, at_target_C1))


def _to_gradient_in_one_pass(
    logits_CV: Tensor, highest_C1: Tensor, by_sum_C1: Tensor, columns_C1: Tensor, at_target_C1: Tensor
) -> None:
    """Turn the logits into their gradient without a scatter."""
    gradient_CV = (logits_CV - highest_C1).exp() * by_sum_C1
    logits_CV.copy_(gradient_CV + _at(columns_C1, logits_CV) * at_target_C1)


def _at(columns_C1: Tensor, logits_CV: Tensor) -> Tensor:
    return torch.arange(logits_CV.shape[1], device=logits_CV.device) == columns_C1


of_whole_rows = Compiled(_of_whole_rows, _of_whole_rows_in_one_pass)
of_split_rows = Compiled(_of_split_rows)
to_gradient = Compiled(_to_gradient, _to_gradient_in_one_pass)


class SerialCrossEntropy(nn.Module):
    """Map of logits [M, V] and targets [M] to the sum of the rows' losses in nats, divided: a scalar.

    columns: V. ignores: whether there may be rows that don't count, whose target is -100. by_token: whether rows are
    tokens of samples, which ranks may share.
    """

    def __init__(self, columns: int, *, ignores: bool = False, by_token: bool = True) -> None:
        super().__init__()
        self.columns, self.ignores, self.by_token = columns, ignores, by_token

    def forward(self, logits_MV: Tensor, targets_M: Tensor, divisor: float | Tensor = 1.0) -> Tensor:
        return F.cross_entropy(logits_MV, targets_M, reduction="sum") / divisor

    def right(self, logits_MV: Tensor, targets_M: Tensor) -> Tensor:
        """Count the rows whose target has the highest logit, of equal ones the first."""
        return (logits_MV.max(dim=1).indices == targets_M).sum()


class CrossEntropy(nn.Module):
    """Sum of the rows' losses in nats, divided, of logits [M, V / G(axis)] and targets [M]: a scalar, the same along
    the axis.

    In float32 at least. Logits of which a gradient is wanted are lost: at once where nothing splits them, else in the
    backward. Those behind V, where the axis doesn't divide it, don't count, and are lost at once.
    """

    def __init__(self, comm: Comm, axis: Axis, columns: int, *, ignores: bool = False) -> None:
        super().__init__()
        self.comm, self.axis, self.columns, self.ignores = comm, axis, columns, ignores
        self.partial: tuple[Axis, ...] = ()
        """axes besides those that split the batch along which ranks have losses of different rows"""

    def forward(self, logits_MV: Tensor, targets_M: Tensor, divisor: float | Tensor = 1.0) -> Tensor:
        """Sum the losses; differentiable once. A gradient divided here is rounded once, and on CPUs needs no further
        pass.
        """
        differentiate = logits_MV.requires_grad and torch.is_grad_enabled()
        if self.ignores and not differentiate:
            logits_MV = logits_MV.clone()
        if self.comm.grid[self.axis] == 1:
            return _CrossEntropy.apply(logits_MV, targets_M, divisor, differentiate, self.ignores)
        return _SplitCrossEntropy.apply(logits_MV, targets_M, divisor, self)

    @torch.no_grad()
    def right(self, logits_MV: Tensor, targets_M: Tensor) -> Tensor:
        """Count the rows whose target has the highest logit, of equal ones the first: the same along the axis."""
        first = self.comm.coords[self.axis] * logits_MV.shape[1]
        own_MV = logits_MV[:, : max(0, self.columns - first)]
        highest_M, places_M = logits_MV.new_full((2, len(logits_MV)), -torch.inf, dtype=torch.float64)
        if own_MV.shape[1]:
            found = own_MV.max(dim=1)
            highest_M, places_M = found.values.double(), -(found.indices + first).double()
        of_all_M = self.comm.run(Kind.MAX_REDUCE, self.axis, highest_M.clone())
        places_M = places_M.where(highest_M == of_all_M, -torch.inf)
        return (-self.comm.run(Kind.MAX_REDUCE, self.axis, places_M) == targets_M).sum()


def _certain(logits_MV: Tensor, targets_M: Tensor, *, first: bool) -> Tensor:
    """Make ignored rows certain of the first column, in place: loss and gradient are then 0. Returns the targets, which
    are that column there. first: whether this rank has it.

    Only within a function of autograd, whose own view of logits that change before it costs as much memory again.
    """
    ignored_M1 = (targets_M < 0).unsqueeze(1)
    logits_MV.masked_fill_(ignored_M1, _lowest(logits_MV))
    if first:
        logits_MV[:, :1].masked_fill_(ignored_M1, 0)
    return targets_M.clamp(min=0)


def _lowest(logits_MV: Tensor) -> float:
    """Return a logit of which the exponential is 0; no infinity, as that times 0 is NaN."""
    return torch.finfo(logits_MV.dtype).min / 2


def _chunks(logits_MV: Tensor) -> Iterator[slice]:
    rows, columns = logits_MV.shape
    return chunks(rows, columns * _wide(logits_MV).itemsize, logits_MV.device.type)


def _wide(tensor: Tensor) -> torch.dtype:
    return at_least_fp32(tensor[:0]).dtype
