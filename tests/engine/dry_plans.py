"""Plans of jobs that are only traced."""

from dataclasses import replace
from pathlib import Path

from engine.batch import Batch
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.training.config import OptimConfig, TrainConfig
from engine.training.plan import Plan

NO_OVERLAP = Overlap()


def dry_plan(
    model: Architecture,
    grid: Grid,
    batch: Batch,
    *,
    checkpoint: bool = True,
    overlap: Overlap = NO_OVERLAP,
    clip: float = 1.0,
    precision: str = "bf16",
) -> Plan:
    config = TrainConfig(
        model=ModelChoice(),
        grid=grid,
        batch=batch,
        data="synthetic",
        out=Path(),
        precision=precision,  # type: ignore[arg-type]
        checkpoint_activations=checkpoint,
        overlap=overlap,
        optim=OptimConfig(clip=clip),
    )
    return Plan(config, model, grid, model.task.data.synthetic())


def few_layers(name: str, layers: int = 3) -> Architecture:
    """At full width."""
    return replace(lookup(name), layers=layers)  # type: ignore[type-var]
