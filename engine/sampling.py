"""Images sampled from a checkpoint of a diffusion model, on any grid, whichever one trained it."""

import base64
import io
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from engine.batch import Batch
from engine.bench.frame import Benchmark, Table
from engine.bench.world import Unmeasurable, World
from engine.checkpoint import store
from engine.checkpoint.manifest import Saved
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.data import CHANNELS
from engine.errors import ContactError, RunError, UsageError, WriteError
from engine.files import write_bytes
from engine.grid import CUTTING_STAGES, REPLICATING, SPLITTING_ROWS, Grid
from engine.layers.counter_random import BatchRows, normal
from engine.models.architecture import Architecture
from engine.models.denoising import Denoising
from engine.models.diffusion import Diffusion
from engine.output import RENEWED
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.precision import DTYPES, Precision
from engine.result import SamplerName
from engine.result.schema import Result
from engine.result.schema.bench import ImageSheet
from engine.training.failure import recorded
from engine.training_record import PrecisionName, Training

log = logging.getLogger(__name__)

GAP = 2
"""White pixels between two images of a sheet."""
FindNoise = Callable[[Tensor, Tensor], Tensor]
"""Noise, whose first channels are the images', of noisy images [B, 3, S, S] and their time steps [B]."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Sampler whose steps are evenly spaced among those of the training.

    "ddpm" has fresh noise at each (Ho et al. 2020, Algorithm 2), "ddim" at the first alone (Song et al. 2021).

    All noise is hashes of the seed, the step, the image and the pixel, the same on every grid.
    """

    name: SamplerName
    steps: int
    seed: int

    def times(self, last: int) -> Iterator[tuple[int, int]]:
        """List the steps from the last to 0, each with the next."""
        return pairwise(round(last * place / self.steps) for place in range(self.steps, -1, -1))

    @torch.no_grad()
    def images(
        self,
        find: FindNoise,
        diffusion: Diffusion,
        images_B: Tensor,
        side: int,
        dtype: torch.dtype = torch.float32,
        *,
        done: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Make the images of these numbers: [B, 3, side, side], of -1 to 1. done: is called after each step."""
        shape = (CHANNELS, side, side)
        x = normal(BatchRows(self.seed, diffusion.steps, images_B), shape, dtype)
        for step, to in self.times(diffusion.steps):
            steps_B, to_B = (torch.full_like(images_B, time) for time in (step, to))
            noise = find(x, steps_B)[:, :CHANNELS].to(dtype)
            start = diffusion.start(x, noise, steps_B).clamp_(-1, 1)
            if self.name == "ddim":
                x = diffusion.implicit(x, start, steps_B, to_B)
            else:
                x = diffusion.ancestral(
                    x, start, normal(BatchRows(self.seed, to, images_B), shape, dtype), steps_B, to_B
                )
            done()
        return x


def as_bytes(images: Tensor) -> Tensor:
    return images.add(1).mul(127.5).round().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True, slots=True)
class ImageSampling(Benchmark):
    """Sampling of images into a PNG, each rank a part of them, and the time that it takes."""

    saved: Saved
    model: Architecture
    task: Denoising
    sampler: Sampler
    count: int
    at_once: int
    """Images that a rank makes together."""
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
        images = gather_images(self._own(model, comm), comm)[: self.count]
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
        images = result.images
        assert images is not None
        assert result.model is not None
        row = (result.model.name, f"{images.trained_steps:,}", images.sampler, str(images.steps), str(images.images))
        return ("network", "trained steps", "sampler", "steps", "images", "seconds"), [(*row, f"{images.time_s:.3g}")]


def own_images(count: int, comm: Comm) -> Tensor:
    """Return the numbers of this rank's images. All ranks have as many, so the last may have some that nobody wants."""
    share = -(-count // comm.grid.batch_split)
    first = comm.grid.position(comm.coords, SPLITTING_ROWS) * share
    return torch.arange(first, first + share, device=comm.device)


def gather_images(own: Tensor, comm: Comm) -> Tensor:
    """Gather the images of all ranks in the order of their numbers, on the host. Collective."""
    grid = comm.grid
    positions = [grid.position(grid.coords(rank), SPLITTING_ROWS) for rank in range(grid.size)]
    first = [positions.index(position) for position in range(grid.batch_split)]
    return comm.gather_rows(own.flatten())[first].view(-1, *own.shape[1:])


def sheet(images_BCYX: NDArray[np.uint8]) -> bytes:
    """Make the PNG of images [B, 3, side, side], about as wide as high."""
    count, channels, side, _ = images_BCYX.shape
    columns = math.ceil(math.sqrt(count))
    rows, pitch = -(-count // columns), side + GAP
    whole = np.full((rows * pitch - GAP, columns * pitch - GAP, channels), 255, np.uint8)
    for number, image in enumerate(images_BCYX):
        top, left = number // columns * pitch, number % columns * pitch
        whole[top : top + side, left : left + side] = image.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(whole).save(file, "PNG")
    return file.getvalue()
