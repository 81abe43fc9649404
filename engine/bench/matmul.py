"""Time the matrix products of one rank of any job in every mode: the tuner's table without the training.

One device stands for one rank of the grid. Under a launcher all ranks time the same products at once, as they would
train: processors and power are shared.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.batch import Batch
from engine.bench.frame import Benchmark, Table
from engine.bench.world import Unmeasurable, World
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.result import metrics
from engine.result.schema import Result
from engine.training.failure import recorded
from engine.training_record import PrecisionName, Training, TrainingOptions
from engine.tuning.shapes import products
from engine.tuning.tune import time_again, tune


@dataclass(frozen=True, slots=True)
class Matmul(Benchmark):
    """Times of a rank's matrix products."""

    model: Architecture
    grid: Grid
    sequences: int
    """of a micro-batch"""
    micro_batches: int
    """of a step"""
    options: TrainingOptions
    twice: bool
    """whether the products are timed once more after the choice"""

    kind = "matmul"
    unmeasured = "No product could be timed"
    lost = "Timing the products failed"

    def check(self, launch: Launch, device: torch.device) -> None:
        for option, count in {"--micro-batch": self.sequences, "--micro-batches": self.micro_batches}.items():
            if count < 1:
                raise UsageError(f"{option} is at least 1, but {count} was given.")
        self.model.check(self.grid)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model": self.model.options,
            "grid": str(self.grid),
            "batch": {"micro": self.sequences, "micro_batches": self.micro_batches},
            **self.training.options_on(self.grid),
            "twice": self.twice,
        }

    @property
    def dtype(self) -> PrecisionName:  # type: ignore[override]
        return self.options.precision

    @property
    def training(self) -> Training:
        """Training whose products are timed."""
        batch = Batch(self.sequences * self.micro_batches * self.grid.batch_split, self.sequences)
        return Training.of(self.options, self.model, batch)

    def measure(self, world: World, found: dict[str, Any]) -> None:
        training = self.training
        found |= {"grid": str(self.grid), "model": recorded(training, self.grid)}
        shapes = products(training, self.grid, world.device)
        _, tuning = tune(shapes, self.dtype, world.comm, force=True)
        if self.twice:
            tuning = time_again(tuning, shapes, self.dtype, world.comm)
        found["tuning"] = tuning
        if not any(shape.times for shape in tuning.shapes):
            raise Unmeasurable("the memory has no room for its operands")

    @staticmethod
    def table(result: Result) -> Table:
        """Tell of each shape the time of a layer's products in a micro-batch, and what tuning gains."""
        assert result.tuning is not None
        rows: list[tuple[str, ...]] = []
        for shape in result.tuning.shapes:
            words = ["-", "-", "-"]
            if shape.own_s is not None and shape.chosen_s is not None:
                gain = metrics.speed_up(shape.own_s, shape.chosen_s)
                words = [f"{1e3 * shape.own_s:.3f}", f"{1e3 * shape.chosen_s:.3f}", f"{gain:.3f}"]
            rows.append((f"{shape.layer} and {shape.layers - 1} more", *map(str, (shape.m, shape.n, shape.k)), *words))
        return ("layers", "m", "n", "k", "PyTorch's own, ms", "chosen, ms", "times as fast"), rows
