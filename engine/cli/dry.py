"""`bench dry`: one rank of a job of any size, alone."""

import json
import sys
from typing import Annotated

from cyclopts import Parameter

from engine.cli.train import PaceOptions
from engine.grid import Grid
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.options import GRID, word
from engine.overlap.flags import ALL, Pace
from engine.training.config import (
    MODEL,
    OVERLAP,
    BatchOptions,
    CheckpointActivations,
    OverlapFlags,
    PrecisionOption,
    TrainConfig,
)
from engine.training.plan import checked


def dry(
    *,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="of the whole job")],
    rank: Annotated[int, Parameter(help="which of the grid's ranks runs")] = 0,
    batch: BatchOptions,
    precision: PrecisionOption = "bf16",
    checkpoint_activations: CheckpointActivations = False,
    overlap: Annotated[OverlapFlags, Parameter(group=OVERLAP)] = ALL,
    pace: PaceOptions = Pace(),
) -> int:
    """Run a training step of one rank of any job, alone and without computing; print what it sends as JSON.

    The engine's own code runs on the meta device over a fake process group, so that calls and bytes are
    those of the real job's first step: cache=auto, which a real job settles after it, keeps nothing here.

      python -m engine bench dry --model gpt-320b --grid 8x4x16x64 --rank 12345 \\
          --batch-size 8192 --micro-batch 2 --checkpoint-activations
    """
    config = TrainConfig(
        model=model,
        grid=grid,
        batch=batch,
        data="synthetic",
        precision=precision,
        checkpoint_activations=checkpoint_activations,
        overlap=overlap.at(pace),
    )
    plan = checked(config, grid.size)
    with loading():
        from engine.bench.dry import dry_run

    sys.stdout.write(json.dumps(dry_run(plan, rank).as_json(), indent=1) + "\n")
    return 0
