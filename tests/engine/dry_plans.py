"""Trainings by Algorithm 1 that are only traced, and their grids."""

from dataclasses import replace

from engine.batch import Batch
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.overlap.flags import Overlap
from engine.training_record import OptimConfig, Training

NO_OVERLAP = Overlap()


def dry_plan(
    model: Architecture,
    grid: Grid,
    batch: Batch,
    *,
    checkpoint: int = 1,
    overlap: Overlap = NO_OVERLAP,
    clip: float = 1.0,
    precision: str = "bf16",
) -> tuple[Training, Grid]:
    training = Training(
        model,
        batch,
        precision=precision,  # type: ignore[arg-type]
        checkpoint_every=checkpoint,
        overlap=overlap,
        optim=OptimConfig(clip=clip),
        tensor_mode="4d",
    )
    return training, grid


def few_layers(name: str, layers: int = 3) -> Architecture:
    """At full width."""
    return replace(lookup(name), layers=layers)  # type: ignore[type-var]
