"""Measure what a rank of a very large job pays before it trains, and for a checkpoint beside its data. No other rank is
needed.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from engine.checkpoint.contents import Contents, Entry, stored_names
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Grid
from engine.measure.gemm import sample
from engine.measure.memory import peak_bytes
from engine.models.architecture import Architecture
from engine.optimizer_state import ADAMW
from engine.parallel.initial import initial
from engine.placement import Placement

CPU = torch.device("cpu")
CONNECTIONS, DRAWINGS = 7, 5
"""Repetitions of each."""


@dataclass(frozen=True, slots=True)
class Startup:
    """Cost of connecting."""

    times_s: tuple[float, ...]
    """Seconds of each repetition."""
    grown_bytes: int
    """Growth of the process's peak memory over all of them."""

    def __str__(self) -> str:
        times = f"{1e3 * median(self.times_s):.2f} ms ({1e3 * min(self.times_s):.2f} to {1e3 * max(self.times_s):.2f})"
        return f"Grid and Comm: {times}, {self.grown_bytes / 2**20:.1f} MiB"


@dataclass(frozen=True, slots=True)
class CheckpointListing:
    """Cost of listing a checkpoint's contents, with growths of the process's peak memory."""

    own_s: float
    """Until the middle rank of the grid knows what it writes."""
    own_grown_bytes: int
    table_s: float
    """Until rank 0 knows so of every rank and has written it, into table_bytes."""
    table_grown_bytes: int
    table_bytes: int

    def __str__(self) -> str:
        return (
            f"plan of a checkpoint: a rank's own {self.own_s:.2f} s, {self.own_grown_bytes / 2**20:.1f} MiB; the table "
            f"of all {self.table_s:.2f} s, {self.table_grown_bytes / 2**20:.1f} MiB, a file of "
            f"{self.table_bytes / 2**20:.1f} MiB"
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """Time of initial values. drawn_s: of each repetition, for as many elements."""

    elements: int
    drawn_s: tuple[float, ...]

    def __str__(self) -> str:
        low, mid, high = (self.elements / s / 1e9 for s in (max(self.drawn_s), median(self.drawn_s), min(self.drawn_s)))
        return f"initial values: {mid:.3g} G elements/s ({low:.3g} to {high:.3g}), of {self.elements:,}"


def connect(grid: Grid) -> Startup:
    """Connect the middle rank of the grid several times over, on torch's fake process group."""
    before, times = peak_bytes(CPU)[1], []
    for _ in range(CONNECTIONS):
        with fake_group(grid, grid.size // 2):
            start = time.perf_counter()
            Comm(Grid.parse(str(grid)))
            times.append(time.perf_counter() - start)
    return Startup(tuple(times), peak_bytes(CPU)[1] - before)


def list_checkpoint(model: Architecture, grid: Grid) -> CheckpointListing:
    """List the contents of a network's checkpoint in fp32. Raises UsageError unless the grid divides it."""
    model.check(grid)
    entries = [
        Entry(stored_as, placement, torch.float32)
        for name, placement in model.placements().items()
        for stored_as in stored_names(name, ADAMW.names)
    ]
    before, start = peak_bytes(CPU)[1], time.perf_counter()
    Contents(entries, grid).of(grid.size // 2)
    own_s, own = time.perf_counter() - start, peak_bytes(CPU)[1]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        Contents(entries, grid).write_table(Path(folder))
        table_s = time.perf_counter() - start
        table_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    return CheckpointListing(own_s, own - before, table_s, peak_bytes(CPU)[1] - own, table_bytes)


def draw_largest(model: Architecture, grid: Grid) -> Drawing:
    """Draw the parameter of which a rank holds the most."""
    return draw(max(model.placements().values(), key=lambda placement: placement.local_numel(grid)), grid, CPU)


def draw(placement: Placement, grid: Grid, device: torch.device) -> Drawing:
    """Draw the initial values that the middle rank holds of a parameter, several times over."""
    coords = grid.coords(grid.size // 2)

    def drawn() -> torch.Tensor:
        return initial(placement, grid, coords, 0, device)

    drawn()  # else the first would pay for memory and kernels
    return Drawing(placement.local_numel(grid), tuple(sample(drawn, 1, device) for _ in range(DRAWINGS)))
