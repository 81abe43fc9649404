"""torch's fake back end: any one rank of any grid runs alone, on the CPU or on the meta device, and sends nothing.

What comes out has the right shape and no meaning.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import launch, nothing
from engine.comm.collective import Kind
from engine.grid import Grid
from engine.measure.pending import Pending


@contextmanager
def fake_group(grid: Grid, rank: int) -> Iterator[None]:
    """Be this rank of the grid meanwhile, alone."""
    dist.init_process_group("fake", rank=rank, world_size=grid.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class FakeChannel:
    """Process group whose other ranks don't exist. Its work takes no callbacks and is never seen to complete."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if not source.is_meta:  # for whose tensors PyTorch 2.9 has no collectives
            launch(kind, self._group, source, target, peer, async_op=True)
        if pending is not None:
            pending.end()
        return nothing
