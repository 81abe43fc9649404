"""Results of `bench layers`, without counting."""

from collections.abc import Iterable, Sequence

from sample_results import provenance

from engine.grid import Grid
from engine.models.layer_pair import LayerPair
from engine.result.schema import Result
from engine.result.schema.bench import LayerCosts
from engine.tensor_mode import ALGORITHM_1, SPLIT, SQUARE, SQUARE_AS_PUBLISHED

MODES = {"1d": ALGORITHM_1, "2d": SQUARE, "2d-published": SQUARE_AS_PUBLISHED, "2.5d": SQUARE, "3d": SPLIT}
ONE = ((32, 1024),)
BY_BATCH, BY_WIDTH = ((256, 1024), (512, 1024)), ((32, 8192), (32, 16384))
LAYOUTS = (
    *(("1d", f"{ranks}x1x1x1") for ranks in (4, 8, 64)),
    *(("2d-published", grid) for grid in ("2x2x1x1", "8x8x1x1")),
    *(("2.5d", grid) for grid in ("2x2x1x1", "2x2x1x2", "4x4x1x4")),
    *(("3d", grid) for grid in ("2x2x2x1", "4x4x4x1")),
)


def layers(
    mode: str,
    grid: str,
    *,
    system: str = "local",
    shapes: Sequence[tuple[int, int]] = ONE,
    moved: float = 1.0,
    peak: float = 1.0,
    job: int = 0,
) -> Result:
    """Two layers of these batches and hidden sizes. moved: elements by the formula's. peak: bytes by others'."""
    pairs = [LayerPair(batch, 512, hidden, hidden) for batch, hidden in shapes]
    formulas = [(pair, pair.moved_elements(MODES[mode], Grid.parse(grid))) for pair in pairs]
    return Result(
        kind="layers",
        status="ok",
        labels={"study": "layers", "system": system, "partition": "cpu"},
        config={"device": "cpu", "threads": 1, "tensor_mode": mode, "grid": grid},
        ranks=1,
        dtype="fp32",
        grid=grid,
        layers=tuple(
            LayerCosts(
                batch=pair.batch,
                sequence=pair.sequence,
                hidden=pair.hidden,
                moved_elements=moved * formula,
                moved_formula=formula,
                held_bytes=pair.tokens * pair.hidden,
                held_formula=pair.tokens * pair.hidden,
                peak_bytes=int(peak * 4 * pair.tokens * pair.hidden),
            )
            for pair, formula in formulas
        ),
        provenance=provenance(job),
    )


def jobs(
    layouts: Iterable[tuple[str, str]] = LAYOUTS, *, first: int = 0, count: int = 2, **known: object
) -> list[Result]:
    """Return some jobs of each layout. first: number of the first."""
    layouts = list(layouts)
    return [
        layers(mode, grid, job=first + count * place + job, **known)  # type: ignore[arg-type]
        for place, (mode, grid) in enumerate(layouts)
        for job in range(count)
    ]
