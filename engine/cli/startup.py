"""`bench startup` measures what a rank of a very large job pays before it trains."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from engine.cli.written import Json, write
from engine.grid import Grid
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import GRID, word


def startup(
    *,
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="the default has 32,768 ranks")] = Grid.parse(
        "8x4x16x64"
    ),
    model: Annotated[str | None, Parameter(help="of which more is measured, such as gpt-320b")] = None,
    json: Json = False,
) -> int:
    """Measure what Grid and Comm, and a model's initial values and plan of a checkpoint, cost a rank of a large job."""
    with loading():
        from engine.bench.startup import connect, draw_largest, list_checkpoint

    network = ModelChoice(model=model).resolve() if model else None
    found = connect(grid)
    words, record = f"{grid.size:,} ranks, {found}", {"ranks": grid.size, **asdict(found)}
    if network is not None:
        for more in (list_checkpoint(network, grid), draw_largest(network, grid)):
            words += f"\n{network.name}, {more}"
            record |= asdict(more)
    write(words, record, as_json=json)
    return 0
