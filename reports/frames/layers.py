"""Two linear layers by tensor mode: what they move, beside colossal-ai's Table 1, and what they hold."""

from collections.abc import Sequence
from math import isqrt

import pandas as pd

from engine.grid import Grid
from engine.result.schema import Result
from reports.frames.jobs import long
from reports.frames.modes import of_option

NUMBERS = "batch sequence hidden moved_elements moved_formula held_bytes held_formula peak_bytes"
PRODUCTS = 2
"""Products of [tokens, hidden] and [hidden, hidden] that a step has forwards."""


def layers(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each shape of each job. layers_on: ranks of the grid, for which one may stand. table_elements:
    what the formula of the mode in Table 1 gives; NaN of another mode.
    """
    found = long(results, lambda one: one.layers, numbers=NUMBERS)
    modes = [of_option(str(results[run].config.get("tensor_mode"))) for run in found["run"]]
    grids = [Grid.parse(results[run].grid or "1x1x1x1") for run in found["run"]]
    elements = [
        table_elements(mode, grid, tokens * hidden, hidden**2)
        for mode, grid, tokens, hidden in zip(
            modes, grids, found["batch"] * found["sequence"], found["hidden"], strict=True
        )
    ]
    return found.assign(mode=modes, grid=list(map(str, grids)), layers_on=[grid.size for grid in grids]).assign(
        table_elements=pd.Series(elements, index=found.index, dtype=float)
    )


def table_elements(mode: str, grid: Grid, activations: float, weight: float) -> float:
    """Return what both products move by Table 1. activations, weight: elements of what one takes, and of its weight."""
    ranks, side = grid.size, isqrt(grid.plane)
    each = {
        "1D": 2 * (ranks - 1) * activations,
        "2D": 3 * (side - 1) * (activations + weight),
        "2.5D": 3 * (side - 1) * (activations / grid.batch_split + weight),
        "3D": 2 * (side - 1) / side * (2 * activations + weight),
    }
    return PRODUCTS * each.get(mode, float("nan"))
