"""`sample` makes images with a network that was trained to find noise in them."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.cli.bench import Common, measure
from engine.cli.common import take_place
from engine.errors import UsageError, check_installed
from engine.grid import Grid
from engine.loading import loading
from engine.models.denoising import Denoising
from engine.options import GRID, File, Folder, check_file, word
from engine.result import SamplerName
from engine.training_record import PrecisionName

USUAL_STEPS = 50
PICTURE = ".png"


def sample(
    *,
    resume: Annotated[Folder, Parameter(help="a run's --save folder, of which the latest checkpoint is taken, or one")],
    images: Annotated[int, Parameter(help="on one sheet")] = 16,
    micro_batch: Annotated[int, Parameter(help="images that a rank makes at once")] = 16,
    sampler: Annotated[
        SamplerName, Parameter(help="ddpm: with fresh noise at each step; ddim: without, which takes fewer steps")
    ] = "ddim",
    sampler_steps: Annotated[
        int | None, Parameter(metavar="N", help=f"default: {USUAL_STEPS} of ddim, of ddpm all of the training")
    ] = None,
    seed: Annotated[int, Parameter(help="of the noise: the same images on every grid")] = 0,
    grid: Annotated[Grid | None, word(Grid.parse, GRID), Parameter(help="default: all ranks along data")] = None,
    precision: Annotated[PrecisionName, Parameter(help="of what the network computes")] = "fp32",
    common: Common = Common(),
    out: Annotated[File, Parameter(help="where the sheet goes, as a PNG; the result is beside it")] = Path(
        "results/samples.png"
    ),
) -> int:
    """Sample images from the checkpoint of a diffusion model, on any grid, whichever one trained it.

    A launcher starts one process a device of the grid.

      python -m engine sample --resume runs/unet --out samples.png

      torchrun --standalone --nproc-per-node 4 -m engine sample \\
          --resume runs/unet --grid 2x1x2x1 --sampler ddpm
    """
    from engine.checkpoint.manifest import Saved, find, network, read_any

    check_installed("PIL", "pillow", "Sheets of images are written by Pillow")
    if out.suffix.lower() != PICTURE:
        raise UsageError(f"--out is the name of a PNG, such as samples{PICTURE}, but {out} was given.")
    check_file("--out", out)
    folder = find(resume)
    saved = Saved(folder, read_any(folder))
    model = network(saved)
    task = model.task
    if not isinstance(task, Denoising):
        raise UsageError(f"The checkpoint {folder} is of {model.name}, which makes no images: give that of a U-Net.")
    steps = sampler_steps if sampler_steps is not None else USUAL_STEPS if sampler == "ddim" else task.steps
    if not 1 <= steps <= task.steps:
        raise UsageError(f"--sampler-steps is from 1 to {task.steps}, those of the training, but {steps} was given.")
    for option, given in (("--images", images), ("--micro-batch", micro_batch)):
        if given < 1:
            raise UsageError(f"{option} is at least 1, but {given} was given.")
    grid = grid or Grid.replicated(take_place().world_size)
    with loading():
        from engine.sampling import ImageSampling, Sampler

    sampling = ImageSampling(
        saved, model, task, Sampler(sampler, steps, seed), images, micro_batch, grid, precision, out
    )
    return measure(sampling, common, out.with_suffix(".json"))
