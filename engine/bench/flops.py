"""Count the flops of a training step by torch's FlopCounterMode, and by the formula (axonn-sc24 VI-C, models/flops.py).

The step is the engine's own, from the forward to the optimizer. Torch counts products as it dispatches them, by their
shapes: no counter of a device is read. Attention runs as products and a softmax, which are counted on every device, and
nothing runs compiled.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, mm_flop

from engine.batch import Batch
from engine.bench.frame import Benchmark, Table
from engine.bench.world import Unmeasurable, World
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.measure.recorder import Recorder
from engine.models.architecture import Architecture
from engine.result.schema import Result
from engine.result.schema.bench import CountedStep, Recomputed
from engine.training.failure import recorded
from engine.training.trainer import Trainer
from engine.training_record import PrecisionName, Training, TrainingOptions

log = logging.getLogger(__name__)

STEPS: tuple[Recomputed, ...] = ("nothing", "blocks")


def _of_sum(added: Sequence[int], a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """Count the flops of a product that is added to something."""
    return int(mm_flop(a, b))


SUMS = {torch.ops.aten.addmm: _of_sum, torch.ops.aten.addmm_: _of_sum}
"""Operators that PyTorch 2.13 doesn't count: sums in place, and those in another format, on which it fails."""


@dataclass(frozen=True, slots=True)
class Flops(Benchmark):
    """Flops of a step. sequences: of each rank, which together train by data parallelism."""

    model: Architecture
    sequences: int
    precision: PrecisionName

    kind = "flops"
    unmeasured = "No flops could be counted"
    lost = "The step whose flops were counted failed with"

    def check(self, launch: Launch, device: torch.device) -> None:
        if self.sequences < 1:
            raise UsageError(f"--micro-batch is at least 1, but {self.sequences} was given.")

    @property
    def dtype(self) -> PrecisionName:  # type: ignore[override]
        return self.precision

    @property
    def config(self) -> dict[str, Any]:
        return {"model": self.model.options, "batch": {"micro": self.sequences}, "precision": self.precision}

    def training(self, ranks: int, recomputed: Recomputed) -> Training:
        """Return the training of which a step is counted."""
        options = TrainingOptions(precision=self.precision, checkpoint_activations=recomputed != "nothing")
        return Training.of(options, self.model, Batch(self.sequences * ranks))

    def measure(self, world: World, found: dict[str, Any]) -> None:
        grid = world.comm.grid
        found |= {"grid": str(grid), "model": recorded(self.training(world.size, "nothing"), grid)}
        for recomputed in STEPS:
            one = self.step(world, recomputed)
            found["counted_flops"] = (*found.get("counted_flops", ()), one)
            log.info("%s recomputed: %d flops counted, %d by the formula", recomputed, one.counted, one.formula)

    def step(self, world: World, recomputed: Recomputed) -> CountedStep:
        """Count a second step, in which all ranks do alike. Collective. Raises Unmeasurable where they don't."""
        training, comm = self.training(world.size, recomputed), world.comm
        recorder = Recorder.on(world.device, breakdown=False)
        trainer = Trainer(training, self.model.task.data.synthetic(), comm, recorder)
        with _countable():
            trainer.step()  # in which what only a first step tries out is multiplied, too
            with FlopCounterMode(display=False, custom_mapping=SUMS) as counter:
                trainer.step()
        trainer.drop()
        least, most = world.gather_rows([counter.get_total_flops()]).aminmax()
        if least < most:
            raise Unmeasurable(f"the ranks' counts are {least:.0f} to {most:.0f}")
        return CountedStep(recomputed=recomputed, counted=int(most), formula=training.flops // world.size)

    @staticmethod
    def table(result: Result) -> Table:
        rows = ((one.recomputed, f"{one.counted:,}", f"{one.formula:,}") for one in result.counted_flops)
        return ("recomputed", "flops counted", "by the formula"), list(rows)


@contextmanager
def _countable() -> Iterator[None]:
    """Have torch dispatch all that a step computes as operators that the counter knows."""
    torch.compiler.set_stance("force_eager")
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.compiler.set_stance("default")
