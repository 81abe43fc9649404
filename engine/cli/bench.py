"""`bench gemm` and `bench startup`: what one device does."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from engine.errors import RunError
from engine.grid import Grid
from engine.options import GRID, Device, Labels, Out, Seconds, check_file, word
from engine.progress import log_to_stderr


def gemm(
    *,
    dtype: Annotated[Literal["bf16", "fp32", "fp64"], Parameter(help="of the matrices")] = "bf16",
    sizes: Annotated[str, Parameter(help="LOW..HIGH doubles, or a comma list")] = "1024..65536",
    device: Device = "auto",
    time_budget: Annotated[Seconds, Parameter(help="sizes that would take longer are skipped")] = 120.0,
    labels: Labels = (),
    out: Out = Path("result.json"),
) -> int:
    """Measure the empirical peak: square matrix multiplications, on all ranks at once where a launcher starts several.

    On processors a rank takes as many threads as OMP_NUM_THREADS says, or all cores.
    """
    from engine.bench.gemm import run_gemm
    from engine.comm.launch import from_environment

    check_file("--out", out)
    launch = from_environment(os.environ)
    log_to_stderr(launch.rank)
    result = run_gemm(
        launch, dtype=dtype, sizes=sizes, device=device, time_budget_s=time_budget, labels=dict(labels), out=out
    )
    if result.best_flops_per_s is None:
        raise RunError(f"No size could be measured: {result.gemm[0].skipped if result.gemm else 'none was given'}.")
    if launch.rank == 0:
        each = f" on each of {launch.world_size} ranks at once" if launch.world_size > 1 else ""
        sys.stdout.write(f"{out}: best {result.best_flops_per_s / 1e12:.3f} Tflop/s{each}\n")
    return 0


def startup(
    *,
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="the default has 32,768 ranks")] = Grid(8, 4, 16, 64),
) -> int:
    """Measure what Grid and Comm cost one rank of a very large job."""
    from engine.bench.startup import measure

    sys.stdout.write(f"{grid.size} ranks, {measure(grid)}\n")
    return 0
