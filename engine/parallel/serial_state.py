"""Put the serial tensors of a parallel model together on rank 0: one tensor at a time exists on any rank."""

from dataclasses import replace

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Kind
from engine.parallel.model import ParallelModel
from engine.placement import Placement


def full_tensor(placement: Placement, local: Tensor, comm: Comm) -> Tensor | None:
    """Put together, on rank 0 alone, the serial tensor of which every rank holds its local elements. Collective."""
    pieces = local.detach().reshape(-1).contiguous()
    axes = placement.axes[::-1]
    for axis in axes:
        pieces = comm.run(Kind.ALL_GATHER, axis, pieces)
    if comm.rank != 0:
        return None
    full = local.new_empty(placement.shape)
    per_rank = placement.local_numel(comm.grid)
    # The last axis gathered is the outermost of the pieces.
    for index, piece in enumerate(pieces.view(-1, per_rank).unbind(0)):
        at, rest = comm.coords, index
        for axis in axes:
            rest, coord = divmod(rest, comm.grid[axis])
            at = replace(at, **{axis: coord})
        for rectangle in placement.rectangles(comm.grid, at):
            full[rectangle.region] = rectangle.of(piece)
    return full


@torch.no_grad()
def _full(model: ParallelModel, local: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, placement in model.placements.items():
        full = full_tensor(placement, local[name], model.comm)
        if full is not None:
            found[name] = full.cpu()
    return found


def full_state_dict(model: ParallelModel) -> dict[str, Tensor]:
    """Give every parameter under its serial name and in its serial shape, on rank 0 (empty elsewhere). Collective."""
    return _full(model, dict(model.local_parameters()))


def full_gradients(model: ParallelModel) -> dict[str, Tensor]:
    """Give every gradient, after finish_step(), as full_state_dict gives the parameters. Collective."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.local_parameters().items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    return _full(model, gradients)
