"""Describe a network on a grid for a result."""

from engine.footprint.fit import parameters_per_rank
from engine.grid import Grid
from engine.models.operations import VOCABULARY
from engine.result.schema import Model
from engine.training_record import Training


def recorded(training: Training, grid: Grid) -> Model:
    model = training.model
    return Model(
        name=model.name,
        family=model.family,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        vocabulary=model.network().divided_by_inner.get(VOCABULARY),
        sequence=model.sequence,
        parameters=model.parameters,
        parameters_per_rank=parameters_per_rank(training, grid),
    )
