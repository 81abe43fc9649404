"""What a rank of a very large job pays to begin: Grid and Comm on torch's fake process group, which needs no peers."""

import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.memory import peak_bytes

REPEATS = 7


@dataclass(frozen=True, slots=True)
class Startup:
    """times_s: of each repetition. grown_bytes: by how much the process's peak memory grew over all of them."""

    times_s: tuple[float, ...]
    grown_bytes: int

    def __str__(self) -> str:
        times = f"{1e3 * median(self.times_s):.2f} ms ({1e3 * min(self.times_s):.2f} to {1e3 * max(self.times_s):.2f})"
        return f"Grid and Comm: {times}, {self.grown_bytes / 2**20:.1f} MiB"


def measure(grid: Grid) -> Startup:
    """Connect the middle rank of the grid, several times over."""
    before, times = peak_bytes(torch.device("cpu"))[1], []
    for _ in range(REPEATS):
        dist.init_process_group("fake", rank=grid.size // 2, world_size=grid.size)
        start = time.perf_counter()
        Comm(Grid.parse(str(grid)))
        times.append(time.perf_counter() - start)
        dist.destroy_process_group()
    return Startup(tuple(times), peak_bytes(torch.device("cpu"))[1] - before)
