"""DTensor's tensor parallelism of the serial model, in the layout of Megatron-LM.

Heads, the feed-forward's width and the head's and the loss's vocabulary are split; norms, positions and the residual
stream are copies on every rank, which all see the whole batch. The token table is split by features: split by tokens,
its gradient comes out of DTensor whole. With sequence parallelism norms and the residual stream are split by positions,
too.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from engine.comm.funnel import Comm
from engine.grid import TENSOR
from engine.models.serial import SerialModel
from engine.peers.comparison import Case
from engine.peers.peer import Tensors, serial_model
from engine.peers.step import TrainingStep
from engine.placement import Placement


class TensorParallel(TrainingStep):
    """Step that clips and updates DTensors and plain parameters apart, as one fused call can't mix them.

    sequence_parallel: what lies between the products [B, S, h] is split over S, too; else each rank has it whole.
    """

    def __init__(self, case: Case, comm: Comm, *, sequence_parallel: bool = False) -> None:
        model, placements = serial_model(case, comm.device), case.model.placements()
        regroup_parts(model, placements, comm.grid.size)
        mesh = init_device_mesh(comm.device.type, (comm.grid.size,))
        parallelize_module(model, mesh, parallelize_plan(model, placements, sequence_parallel))
        super().__init__(case, model, comm.device)

    def _backward(self, batch: Tensors) -> Tensor:
        with loss_parallel():
            return super()._backward(batch)

    def _clip(self) -> Tensor | float:
        """Sum what each rank has of a norm's gradient first, as PyTorch 2.9 takes parts for the whole."""
        for parameter in self._masters.parameters:
            grad = parameter.grad
            if not isinstance(parameter, DTensor) or not isinstance(grad, DTensor):
                continue
            if grad.placements != parameter.placements:
                parameter.grad = grad.redistribute(placements=parameter.placements)
        return super()._clip()


def parallelize_plan(
    model: SerialModel, placements: Mapping[str, Placement], sequence_parallel: bool
) -> dict[str, ParallelStyle]:
    """Return the style of each layer with a matrix: what the engine splits over x, DTensor splits over its one axis."""
    between = Shard(1) if sequence_parallel else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for name, layer in model.named_modules():
        if layer is model.head:
            styles[name] = ColwiseParallel(input_layouts=between, use_local_output=False)
        elif layer is model.tokens:
            styles[name] = ColwiseParallel(output_layouts=between)
        elif isinstance(layer, nn.Linear):
            column = placements[f"{name}.weight"].split[0] is TENSOR
            styles[name] = ColwiseParallel(input_layouts=between) if column else RowwiseParallel(output_layouts=between)
        elif sequence_parallel and isinstance(layer, nn.Embedding):
            styles[name] = ColwiseParallel(output_layouts=Shard(0))  # of positions: [S, h]
        elif sequence_parallel and isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            styles[name] = SequenceParallel(use_local_output=True)
    return styles


@torch.no_grad()
def regroup_parts(model: SerialModel, placements: Mapping[str, Placement], ranks: int) -> None:
    """Reorder the rows of fused projections so that a rank's contiguous share has its part of each part.

    ColwiseParallel cuts contiguous rows; without this it would give one rank all the queries.
    """
    for name, parameter in model.named_parameters():
        if sizes := placements[name].parts.get(0):
            shares = [part.chunk(ranks) for part in parameter.split(list(sizes))]
            parameter.copy_(torch.cat([share[rank] for rank in range(ranks) for share in shares]))
