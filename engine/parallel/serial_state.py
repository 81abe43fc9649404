"""Serial tensors of a parallel model, put together on rank 0: one tensor at a time exists on any rank."""

from dataclasses import replace

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Kind
from engine.grid import CUTTING_STAGES
from engine.parallel.model import ParallelModel
from engine.placement import Placement


def full_tensor(placement: Placement, local: Tensor, comm: Comm) -> Tensor | None:
    """Gather a serial tensor on the first rank of a stage alone. local: a rank's elements. Collective in the stage."""
    pieces = local.detach().to(comm.device).reshape(-1).contiguous()
    axes = placement.axes[::-1]
    for axis in axes:
        pieces = comm.run(Kind.ALL_GATHER, axis, pieces)
    if not _leads(comm):
        return None
    full = pieces.new_empty(placement.shape)
    per_rank = placement.local_numel(comm.grid)
    # The last axis gathered is the outermost of the pieces.
    for index, piece in enumerate(pieces.view(-1, per_rank).unbind(0)):
        at, rest = comm.coords, index
        for axis in axes:
            rest, coord = divmod(rest, comm.grid[axis])
            at = replace(at, **{axis: coord})
        for rectangle in placement.rectangles(comm.grid, at):
            full[rectangle.region] = rectangle.view(piece)
    return full


@torch.no_grad()
def _full(model: ParallelModel, local: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    comm, parts, dtype = model.comm, model.parts, next(iter(local.values())).dtype
    for name, placement in model.placements.items():
        owner, full = parts.owners[name], None
        if comm.coords[CUTTING_STAGES] == owner:
            full = full_tensor(placement, local[name], comm)
        if owner and _leads(comm):
            if full is not None:
                comm.issue(Kind.SEND, CUTTING_STAGES, full, peer=0).wait()
            elif comm.rank == 0:
                full = torch.empty(placement.shape, dtype=dtype, device=comm.device)
                comm.issue(Kind.RECV, CUTTING_STAGES, full, peer=owner).wait()
        if full is not None and comm.rank == 0:
            found[name] = full.cpu()
    return found


def _leads(comm: Comm) -> bool:
    return comm.rank == comm.coords[CUTTING_STAGES] * comm.grid.stride(CUTTING_STAGES)


def full_state_dict(model: ParallelModel) -> dict[str, Tensor]:
    """Return every parameter under its serial name and in its serial shape, on rank 0 (empty elsewhere). Collective."""
    return _full(model, dict(model.local_parameters()))


def full_gradients(model: ParallelModel) -> dict[str, Tensor]:
    """Return every gradient, after finish_step(), as full_state_dict returns the parameters. Collective."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.local_parameters().items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
    return _full(model, gradients)
