"""What the ranks of a very large job pay for a checkpoint beside its data: no other rank is needed to know it."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.checkpoint.contents import Contents, Entry, stored_names
from engine.grid import Grid
from engine.measure.memory import peak_bytes
from engine.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """own_s: until the middle rank of the grid knows what it writes. table_s: until rank 0 knows so of every rank and
    has written it, into table_bytes. Both come with the bytes by which the process's peak memory grew.
    """

    own_s: float
    own_grown_bytes: int
    table_s: float
    table_grown_bytes: int
    table_bytes: int

    def __str__(self) -> str:
        return (
            f"plan of a checkpoint: a rank's own {self.own_s:.2f} s, {self.own_grown_bytes / 2**20:.1f} MiB; the table "
            f"of all {self.table_s:.2f} s, {self.table_grown_bytes / 2**20:.1f} MiB, a file of "
            f"{self.table_bytes / 2**20:.1f} MiB"
        )


def measure(model: Architecture, grid: Grid) -> CheckpointPlan:
    """Plan the checkpoint of a network in fp32. Raises UsageError unless the grid divides it."""
    model.check(grid)
    entries = [
        Entry(stored_as, placement, torch.float32)
        for name, placement in model.placements().items()
        for stored_as in stored_names(name)
    ]
    before, start = _peak_bytes(), time.perf_counter()
    Contents(entries, grid).of(grid.size // 2)
    own_s, own = time.perf_counter() - start, _peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        Contents(entries, grid).write_table(Path(folder))
        table_s = time.perf_counter() - start
        table_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    return CheckpointPlan(own_s, own - before, table_s, _peak_bytes() - own, table_bytes)


def _peak_bytes() -> int:
    return peak_bytes(torch.device("cpu"))[1]
