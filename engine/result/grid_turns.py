"""This part of the schema of result.json says how grids compare that took turns in one job."""

from engine.result.grid_text import GridText
from engine.result.ratio import Ratio
from engine.schema import Record


class GridTurns(Record):
    """It is one grid, which took turns with the others in the same processes.

    micro_batch: sequences that a rank takes at once. schedule: of a grid with stages. rounds_s: seconds of each counted
    step, by round. over_first: its time by that of the first, paired by round; absent for the first itself. exposed_s:
    by axis, what a rank waits for in a step, the mean of all. predicted_s: of a step, where the plan chose the grids.
    """

    grid: GridText
    micro_batch: int
    schedule: str | None = None
    rounds_s: tuple[tuple[float, ...], ...]
    time_per_iteration_s: float
    over_first: Ratio | None = None
    exposed_s: dict[str, float]
    predicted_s: float | None = None
