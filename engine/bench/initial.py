"""How fast a device draws initial values: of the largest parameter of a rank."""

from dataclasses import dataclass
from statistics import median

import torch

from engine.grid import Grid
from engine.measure.sample import sample
from engine.models.architecture import Architecture
from engine.parallel.initial import initial
from engine.placement import Placement

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Drawing:
    """drawn_s: of each repetition, for as many elements."""

    elements: int
    drawn_s: tuple[float, ...]

    def __str__(self) -> str:
        low, mid, high = (self.elements / s / 1e9 for s in (max(self.drawn_s), median(self.drawn_s), min(self.drawn_s)))
        return f"initial values: {mid:.3g} G elements/s ({low:.3g} to {high:.3g}), of {self.elements:,}"


def measure(placement: Placement, grid: Grid, device: torch.device) -> Drawing:
    """Draw what the middle rank holds of a parameter, several times over."""
    coords = grid.coords(grid.size // 2)

    def draw() -> torch.Tensor:
        return initial(placement, grid, coords, 0, device)

    draw()  # else the first would pay for memory and kernels
    return Drawing(placement.local_numel(grid), tuple(sample(draw, 1, device) for _ in range(REPEATS)))


def largest(model: Architecture, grid: Grid) -> Placement:
    """The parameter of which a rank holds the most. Raises UsageError unless the grid divides the network."""
    return max(model.placements().values(), key=lambda placement: placement.local_numel(grid))
