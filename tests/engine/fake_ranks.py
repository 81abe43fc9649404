"""One rank of any grid alone, over torch's fake back end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from engine.grid import Grid


@contextmanager
def fake_group(grid: Grid, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=grid.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Ticks:
    """A clock that moves on with each stamp."""

    now = 0.0

    def stamp(self) -> float:
        self.now += 1
        return self.now

    stamp_end = stamp

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def forget(self) -> None:
        pass
