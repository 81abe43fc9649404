"""Norm and clipping of a parallel model's gradients."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.grid import CUTTING_STAGES, HOLDING

LONG = 65536
"""Elements beyond which a norm is taken by rows."""
ROW_OF_NORM = 512


def sum_of_squares(tensors: Iterable[Tensor]) -> Tensor:
    """Sum the squares of all elements to a scalar, in fp32 at least, by norms, which lose less than long sums.

    On processors torch adds up a whole tensor in a few numbers, and loses 2e-4 of the norm of 4 million elements whose
    sizes differ: so a long one is taken by rows.
    """
    return torch.stack([_norm(tensor.flatten()) for tensor in tensors]).square().sum()


def _norm(flat: Tensor) -> Tensor:
    dtype = torch.promote_types(flat.dtype, torch.float32)
    if not flat.is_cpu or flat.numel() <= LONG:
        return torch.linalg.vector_norm(flat, dtype=dtype)
    whole = flat.numel() // ROW_OF_NORM * ROW_OF_NORM
    of_rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW_OF_NORM), dim=1, dtype=dtype)
    return _norm(torch.cat([of_rows, flat[whole:].to(dtype)]))


@torch.no_grad()
def norm_over_grid(by_replicas: Mapping[int, Iterable[Tensor]], comm: Comm) -> Tensor:
    """Compute the 2-norm of the whole gradient: a scalar, the same on every rank.

    Each element counts once: a rank's sum of squares is divided by the number of ranks that hold the same elements.
    """
    sums = [sum_of_squares(tensors) / replicas for replicas, tensors in by_replicas.items()]
    total = torch.stack(sums).sum()
    return comm.sum(total, (*HOLDING, CUTTING_STAGES)).sqrt()


@torch.no_grad()
def clip_scale(norm: Tensor, limit: float) -> Tensor:
    """Return the factor that clips a norm to the limit; no host synchronisation."""
    return (limit / (norm + 1e-6)).clamp(max=1.0)
