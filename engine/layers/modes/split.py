"""Split activations: Algorithm 1 of axonn-sc24 without repeated work.

Each side of a block is cut along the axis on which Algorithm 1 repeats it, too: the stream's rows over x, those between
two products over y; or attention's heads there, where y doesn't divide the samples. Each all-reduce becomes a
reduce-scatter behind one product and an all-gather before the next, which together send as many bytes (Korthikanti et
al. 2022, 4.2.2). On a cube of ranks it is the 3D of Bian et al. 2021 (colossal-ai 2.2), to the element.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import Axis
from engine.layers import matmul
from engine.layers.embedding import PositionEmbedding, TokenEmbedding, look_up
from engine.layers.linear import ShardedLinear
from engine.layers.local import Local
from engine.layers.loss import CrossEntropy, SerialCrossEntropy
from engine.layers.matmul import Kernels
from engine.layers.passes import Pass, Rows
from engine.layers.redistribute import Enter, Leave, Redistribute, all_rows, redistributed
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight
from engine.tensor_mode import TensorMode


class Share(Protocol):
    """Way in which the ranks of an axis share activations [M, n]: a part of the rows each, or of the features."""

    axis: Axis
    ranks: int

    def by_rank(self, whole_MN: Tensor) -> Tensor:
        """Lay the parts of all ranks one behind the other."""

    def whole(self, by_rank: Tensor, part: Tensor) -> Tensor:
        """Undo by_rank. part: this rank's."""

    def of_vector(self, vector_N: Tensor) -> Tensor:
        """Return what of a vector [n] belongs to this rank's features."""


class RowShare:
    """Part of the rows."""

    def __init__(self, comm: Comm, axis: Axis) -> None:
        self.axis, self.ranks = axis, comm.grid[axis]

    def by_rank(self, whole_MN: Tensor) -> Tensor:
        return whole_MN

    def whole(self, by_rank: Tensor, part: Tensor) -> Tensor:
        return by_rank.view(-1, part.shape[1])

    def of_vector(self, vector_N: Tensor) -> Tensor:
        return vector_N


class HeadShare:
    """Part of the heads of each of some parts, such as queries, keys and values. parts: features of each."""

    def __init__(self, comm: Comm, axis: Axis, parts: Sequence[int]) -> None:
        self.axis, self.ranks = axis, comm.grid[axis]
        self._at, self._parts = comm.coords[axis], list(parts)
        self._shares = [size // self.ranks for size in parts]

    def by_rank(self, whole_MN: Tensor) -> Tensor:
        parts = (part.unflatten(1, (self.ranks, -1)) for part in whole_MN.split(self._parts, dim=1))
        return torch.cat(list(parts), dim=2).transpose(0, 1).contiguous()

    def whole(self, by_rank: Tensor, part: Tensor) -> Tensor:
        shares = by_rank.view(self.ranks, *part.shape).transpose(0, 1).split(self._shares, dim=2)
        return torch.cat([share.flatten(1) for share in shares], dim=1)

    def of_vector(self, vector_N: Tensor) -> Tensor:
        return torch.cat([part.view(self.ranks, -1)[self._at] for part in vector_N.split(self._parts)])


def gather(part: Tensor, comm: Comm, share: Share) -> Tensor:
    """Gather what all ranks have, [M, n], of a rank's part."""
    if share.ranks == 1:
        return part
    return share.whole(comm.run(Kind.ALL_GATHER, share.axis, part.contiguous().view(-1)), part)


def scatter(partial_MN: Tensor, comm: Comm, share: Share) -> Tensor:
    """Sum [M, n] over the ranks, each of which keeps its part, flat."""
    if share.ranks == 1:
        return partial_MN
    return comm.run(Kind.REDUCE_SCATTER, share.axis, share.by_rank(partial_MN).view(-1))


class ScatterSum(torch.autograd.Function):
    """Sum of partial outputs [M, N], of which each rank keeps its part, with the bias.

    A function of its own, so that a checkpoint's early stop skips the block's last one in the recomputation. cast: the
    bias in the compute dtype.
    """

    @staticmethod
    def forward(
        ctx: Any,
        partial_MN: Tensor,
        bias: nn.Parameter | None,
        cast: Tensor | None,
        comm: Comm,
        share: Share,
        width: int,
    ) -> Tensor:
        ctx.comm, ctx.share, ctx.dtype = comm, share, None if bias is None else bias.dtype
        part = scatter(partial_MN.detach(), comm, share).view(-1, width)
        if cast is not None:
            part = part + share.of_vector(cast) if share.ranks == 1 else part.add_(share.of_vector(cast))
        return part.detach()  # for autograd no view, so that what comes next may write into it

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        dO_MN = gather(dO, ctx.comm, ctx.share)
        dbias_N = None if ctx.dtype is None else dO_MN.sum(dim=0, dtype=ctx.dtype)
        return dO_MN, dbias_N, None, None, None, None


class GatherMatmul(torch.autograd.Function):
    """Partial outputs [M, N] of gathered inputs; in the backward their gradient is summed and scattered.

    Line numbers are those of Algorithm 1 (layers/linear.py), whose order it keeps.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, shard: Tensor, layer: "SplitLinear") -> Tensor:
        I_MK = gather(part.detach(), layer.comm, layer.takes)
        W_NK = layer.schedule.gather(layer.sharded)  # line 2
        kept = part if layer.gathers_again else I_MK
        ctx.save_for_backward(kept, W_NK if layer.schedule.keeps(layer.sharded) else None)  # line 5
        ctx.layer, ctx.shape = layer, part.shape
        return matmul.forward(I_MK, W_NK, None, layer.kernels.forward)  # line 3

    @staticmethod
    def backward(ctx: Any, dO_MN: Tensor) -> tuple[Tensor | None, None, None]:
        kept, W_NK = ctx.saved_tensors  # line 10
        layer: SplitLinear = ctx.layer
        schedule, coming = layer.schedule, None
        dI_MK = None
        gathering = layer.start_gather(kept) if layer.gathers_again else None
        if ctx.needs_input_grad[0]:
            if W_NK is None:
                W_NK = schedule.gather(layer.sharded)
            dI_MK = matmul.input_gradient(dO_MN, W_NK, layer.kernels.input_gradient)  # line 11
            coming = layer.start_scatter(dI_MK)  # line 12
        I_MK = kept if gathering is None else layer.takes.whole(gathering.wait(), kept)

        def fill(out: Tensor, *, add: bool) -> None:
            matmul.weight_gradient(out, dO_MN, I_MK, add=add, mode=layer.kernels.weight_gradient)

        schedule.accumulate(layer.sharded, fill, layer.gradient_dtype)  # lines 13-14
        dI = dI_MK if coming is None else coming.wait(unavoidable=True).view(ctx.shape)  # OAR, behind the product
        return dI, None, None


class SplitLinear(ShardedLinear):
    """Linear layer that takes and gives a rank's own rows, or heads, flat: [..., k'] to [1, M', n'].

    takes: how its inputs are cut along the axis that splits n. gives: its outputs, along the one that splits k.
    gathers_again: whether the backward gathers the input anew.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: WeightSchedule,
        sharded: ShardedWeight,
        bias: nn.Parameter | None,
        kernels: Kernels,
        takes: Share,
        gives: Share,
        *,
        gathers_again: bool = False,
    ) -> None:
        super().__init__(comm, schedule, sharded, bias, kernels)
        self.takes, self.gives = takes, gives
        self.gathers_again = gathers_again and takes.ranks > 1
        self.width = sharded.tile_shape[0] // (gives.ranks if isinstance(gives, HeadShare) else 1)

    def forward(self, inputs: Tensor) -> Tensor:
        partial_MN = GatherMatmul.apply(inputs.flatten(0, -2), self.weight, self)
        cast = None if self.bias is None else self.schedule.cast(self.bias)
        return ScatterSum.apply(partial_MN, self.bias, cast, self.comm, self.gives, self.width).unsqueeze(0)

    def start_gather(self, part: Tensor) -> Handle:
        """Start to gather what all ranks have of the layer's input, behind the product of dI."""
        return self.start(Kind.ALL_GATHER, self.takes.axis, part.contiguous().view(-1))

    def start_scatter(self, dI_MK: Tensor) -> Handle | None:
        """Start line 12: sum dI over the axis that splits n, and scatter it. Returns what is to be waited for."""
        if self.takes.ranks == 1:
            return None
        return self.start(Kind.REDUCE_SCATTER, self.takes.axis, self.takes.by_rank(dI_MK).view(-1))


class SplitTokenEmbedding(TokenEmbedding):
    """Table of tokens [B, S] to the stream's own rows of features, [1, M', h / G(features' axis)]."""

    def forward(self, tokens_BS: Tensor) -> Tensor:
        partial_MH = look_up(tokens_BS, self)
        share = RowShare(self.comm, self.axis)
        return ScatterSum.apply(partial_MH, None, None, self.comm, share, partial_MH.shape[1]).unsqueeze(0)


class SplitCrossEntropy(CrossEntropy):
    """Sum of the losses of a rank's own rows, of logits [M', V / G(axis)] and targets [M] of all rows.

    place: which part of the rows they are. partial: axes over which the ranks' losses add up.
    """

    def __init__(self, comm: Comm, mode: TensorMode, columns: int, *, ignores: bool) -> None:
        super().__init__(comm, mode.inner.features, columns, ignores=ignores)
        self.partial = mode.inner.rows
        self.place = comm.grid.position(comm.coords, mode.inner.rows)

    def forward(self, logits_MV: Tensor, targets_M: Tensor, divisor: float | Tensor = 1.0) -> Tensor:
        return super().forward(logits_MV, self._own(targets_M, len(logits_MV)), divisor)

    def right(self, logits_MV: Tensor, targets_M: Tensor) -> Tensor:
        return super().right(logits_MV, self._own(targets_M, len(logits_MV)))

    def _own(self, targets_M: Tensor, rows: int) -> Tensor:
        return targets_M[self.place * rows : (self.place + 1) * rows]


class _Move(torch.autograd.Function):
    """Own rows of features that one axis splits to own rows that another does, by way of all of them."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, comm: Comm, features: Axis, rows: Axis) -> Tensor:
        ctx.comm, ctx.axes = comm, (rows, features)
        return _moved(part, comm, features, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _moved(gradient, ctx.comm, *ctx.axes), None, None, None


def _moved(part: Tensor, comm: Comm, features: Axis, rows: Axis) -> Tensor:
    """Map [M / G(rows), n / G(features)] to [M / G(features), n / G(rows)]."""
    all_rows_MN = redistributed(gather(part, comm, RowShare(comm, rows)), comm, features, rows, 1)
    return all_rows_MN.chunk(comm.grid[features])[comm.coords[features]]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole_BSH: Tensor, own: Rows, comm: Comm, share: Share) -> Tensor:
        ctx.comm, ctx.share, ctx.shape = comm, share, whole_BSH.shape
        return own.of(whole_BSH).clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gather(gradient.flatten(0, 1), ctx.comm, ctx.share).view(ctx.shape), None, None, None


class SplitEnter(Enter):
    """Own rows of what all ranks along them have; its gradient comes from all of them."""

    def __init__(self, comm: Comm, mode: TensorMode) -> None:
        super().__init__()
        (rows,) = mode.stream.rows
        self.comm, self.share = comm, RowShare(comm, rows)

    def forward(self, x_BSH: Tensor, at: Pass) -> Tensor:
        return _Enter.apply(x_BSH, at.own, self.comm, self.share)


class SplitLeave(Leave):
    """All rows of those that ranks have; what comes next computes the same on all of them."""

    def __init__(self, comm: Comm, mode: TensorMode) -> None:
        super().__init__()
        self.comm, self.axes = comm, mode.stream.rows

    def forward(self, x: Tensor, at: Pass) -> Tensor:
        return at.by_sample(all_rows(x, self.comm, self.axes))


class SplitRedistribute(nn.Module):
    """Way of features from inside of a block to the stream, [1, M / Gy, n / Gx] to [1, M / Gx, n / Gy]."""

    def __init__(self, comm: Comm, mode: TensorMode) -> None:
        super().__init__()
        (rows,) = mode.inner.rows
        self.comm, self.axes = comm, (mode.inner.features, rows)

    def forward(self, features: Tensor) -> Tensor:
        return _Move.apply(features.flatten(0, -2), self.comm, *self.axes).unsqueeze(0)


def _linear(_: nn.Linear, local: Local) -> SplitLinear:
    """Make the layer by the sides of its outputs and inputs, which the axes of its weight tell."""
    sharded, comm, mode = local.sharded["weight"], local.comm, local.mode
    (stream_rows,), (inner_rows,), placement = mode.stream.rows, mode.inner.rows, sharded.placement
    onto = placement.split[0] is mode.stream.features
    inner: Share = RowShare(comm, inner_rows)
    if mode.by_heads and placement.units:
        inner = HeadShare(comm, inner_rows, placement.shares(1 if onto else 0, comm.grid))
    stream = RowShare(comm, stream_rows)
    takes, gives = (inner, stream) if onto else (stream, inner)
    bias, again = local.parameters.get("bias"), mode.gathers_again
    return SplitLinear(comm, local.schedule, sharded, bias, local.kernels, takes, gives, gathers_again=again)


def embedding(serial: nn.Embedding, local: Local) -> nn.Module:
    if "weight" in local.sharded:
        return SplitTokenEmbedding(local.comm, local.schedule, local.sharded["weight"], serial.padding_idx)
    return PositionEmbedding(local.parameters["weight"], local.schedule.compute_dtype)


def cross_entropy(serial: SerialCrossEntropy, local: Local) -> nn.Module:
    if not serial.by_token:
        return CrossEntropy(local.comm, local.mode.whole.inner.features, serial.columns, ignores=serial.ignores)
    return SplitCrossEntropy(local.comm, local.mode, serial.columns, ignores=serial.ignores)


LAYERS: dict[type[nn.Module], Callable[[Any, Local], nn.Module]] = {
    nn.Linear: _linear,
    nn.Embedding: embedding,
    SerialCrossEntropy: cross_entropy,
    Redistribute: lambda _, local: SplitRedistribute(local.comm, local.mode),
    Enter: lambda _, local: SplitEnter(local.comm, local.mode),
    Leave: lambda _, local: SplitLeave(local.comm, local.mode),
}
"""Makers of the layers that differ from those of Algorithm 1."""
