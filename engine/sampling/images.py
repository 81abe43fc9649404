"""Sample images from a checkpoint, on any grid, whichever one trained it."""

import base64
import logging
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.batch import Batch
from engine.bench.benchmark import Benchmark, Table
from engine.bench.world import Unmeasurable, World
from engine.checkpoint import store
from engine.checkpoint.manifest import Saved
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.data.sheet import sheet
from engine.errors import ContactError, RunError, UsageError, WriteError
from engine.files import write_bytes
from engine.grid import CUTTING_STAGES, REPLICATING, SPLITTING_ROWS, Grid
from engine.models.architecture import Architecture
from engine.models.denoising import Denoising
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.precision import DTYPES, Precision
from engine.progress import RENEWED
from engine.result.schema import Result
from engine.result.schema.bench import ImageSheet
from engine.sampling.sampler import Sampler, as_bytes
from engine.training.model_record import recorded
from engine.training_record import PrecisionName, Training

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ImageSampling(Benchmark):
    """It samples so many images into a PNG, each rank a part of them, and tells the time. at_once: a rank makes so many
    together. sampler: its steps are set, and no more than the network was trained for.
    """

    saved: Saved
    model: Architecture
    task: Denoising
    sampler: Sampler
    count: int
    at_once: int
    grid: Grid
    dtype: PrecisionName
    out: Path

    kind = "sample"
    unmeasured = "No image was sampled"
    lost = "Sampling failed"
    between_ranks = True

    def check(self, launch: Launch, device: torch.device) -> None:
        if self.grid.size != launch.world_size:
            raise UsageError(
                f"Grid {self.grid} has {self.grid.size} ranks, but {launch.world_size} were started: start "
                f"{self.grid.size}, or leave --grid out."
            )
        if self.grid.stages > 1:
            stages, replicas = self.grid.stages, self.grid.model_replicas
            raise UsageError(
                f"Images are sampled without a pipeline, but --grid {self.grid} has one of {stages} stages: give a "
                f"grid without, such as {self.grid.sized({CUTTING_STAGES: 1, REPLICATING[0]: replicas * stages})}."
            )
        self.model.check(self.grid)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "resume": str(self.saved.folder),
            "model": self.model.options,
            "grid": str(self.grid),
            "images": self.count,
            "micro_batch": self.at_once,
            "sampler": self.sampler.name,
            "sampler_steps": self.sampler.steps,
            "seed": self.sampler.seed,
            "precision": self.dtype,
            "out": str(self.out),
        }

    def laid_out(self, ranks: int) -> Grid:
        return self.grid

    def measure(self, world: World, found: dict[str, Any]) -> None:
        comm = world.comm
        training = Training(self.model, Batch(self.count), precision=self.dtype, seed=self.saved.manifest.seed)
        found |= {"grid": str(self.grid), "model": recorded(training, self.grid)}
        precision = Precision.parse(self.dtype)
        model = parallelize(self.model, comm, precision=precision, seed=training.seed, device=comm.device)
        try:
            store.load(self.saved, model, {parameter: {} for parameter in model.local_parameters().values()})
        except ContactError:
            raise
        except RunError as error:
            raise Unmeasurable(str(error).rstrip(".")) from error
        start = time.perf_counter()
        images = together(self._own(model, comm), comm)[: self.count]
        time_s, png = time.perf_counter() - start, sheet(images.numpy())
        why = None
        if comm.rank == 0:
            try:
                write_bytes(self.out, png)
            except WriteError as error:
                why = str(error).rstrip(".")
        if why := world.obstacle(why):
            raise Unmeasurable(why)
        found["images"] = ImageSheet(
            trained_steps=self.saved.manifest.step,
            sampler=self.sampler.name,
            steps=self.sampler.steps,
            images=self.count,
            side=self.task.data.side,
            time_s=time_s,
            png=base64.b64encode(png).decode(),
        )

    def _own(self, model: ParallelModel, comm: Comm) -> Tensor:
        """Make the images of this rank, as bytes."""
        parts, numbers = own_images(self.count, comm).split(self.at_once), count(1)

        def done() -> None:
            comm.barrier()  # a host that runs ahead of its device would start collectives long before their time
            log.info("step %d of %d", next(numbers), len(parts) * self.sampler.steps, extra=RENEWED)

        diffusion, side = self.task.diffusion, self.task.data.side
        dtype = torch.promote_types(DTYPES[self.dtype], torch.float32)
        made = [self.sampler.images(model, diffusion, images_B, side, dtype, done=done) for images_B in parts]
        return as_bytes(torch.cat(made))

    @staticmethod
    def table(result: Result) -> Table:
        assert result.images is not None
        assert result.model is not None
        sheet = result.images
        row = (result.model.name, f"{sheet.trained_steps:,}", sheet.sampler, *map(str, (sheet.steps, sheet.images)))
        return ("network", "trained steps", "sampler", "steps", "images", "seconds"), [(*row, f"{sheet.time_s:.3g}")]


def own_images(count: int, comm: Comm) -> Tensor:
    """Number the images of this rank. All ranks have as many, so that the last may have some that nobody asked for."""
    share = -(-count // comm.grid.batch_split)
    first = comm.grid.position(comm.coords, SPLITTING_ROWS) * share
    return torch.arange(first, first + share, device=comm.device)


def together(own: Tensor, comm: Comm) -> Tensor:
    """Gather the images of all ranks in the order of their numbers, on the host. Collective."""
    grid = comm.grid
    positions = [grid.position(grid.coords(rank), SPLITTING_ROWS) for rank in range(grid.size)]
    first = [positions.index(position) for position in range(grid.batch_split)]
    return comm.gather_rows(own.flatten())[first].view(-1, *own.shape[1:])
