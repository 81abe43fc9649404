"""Loss curves as long as the papers': a GPT on text and a U-Net on images (par4d VI-A and Fig. 8), and a GPT in stages
(axonn-ipdps22 VII-A and Fig. 10), each beside the same training with data parallelism alone.

    par4d data prepare --source bookcorpus/ --out corpus --vocab-size 50257
    reframe -c suites/long_validation.py --system perlmutter -n Text -S data=$PWD/corpus
    par4d data prepare-images --source cifar-10-batches-bin/ --out cifar
    reframe -c suites/long_validation.py --system perlmutter -n Images -S data=$PWD/cifar

Data are the user's own, so that nothing runs without -S data: BookCorpus and CIFAR-10 in par4d, wikitext-103 in
axonn-ipdps22, whose test is LongStages. -S iterations= takes fewer steps.

After thousands of steps rounding has led curves apart, so means of 100 steps are compared. The other curve is data
parallelism, as in par4d, on as many devices: one device takes days in axonn-ipdps22. Short curves hold the engine's to
serial training, and its first steps to Megatron-core and DDP (validation.py).
"""

from dataclasses import replace
from typing import NamedTuple

import reframe as rfm
from reframe.core.builtins import fixture, run_after

from engine.grid import Grid
from engine.training_record import OptimConfig, PrecisionName
from suites.base.curves import BesideData, OneCurve
from suites.base.prepared import OfItsData
from suites.base.series import AUTO
from suites.base.training import SYNTHETIC, SYSTEM


class Recipe(NamedTuple):
    """Long training, its ranks and time limit."""

    grid: str
    model: str
    sequences: int
    iterations: int
    precision: PrecisionName
    optim: OptimConfig
    micro_batch: int | None = None
    limit: str = "2h"


ON_GPUS = SYSTEM.device.kind == "cuda"
LR_WARMUP = 200
"""Steps over which the learning rate rises; then it falls to a tenth until the end."""
# par4d VI-A has the steps. axonn-ipdps22 trains "to completion" and prints no steps: 20,000 of 24 sequences of 1024
# tokens are four passes over the tokens of wikitext-103. Its optimizer is VI-C's. No paper prints the
# batches, and par4d no learning rates. On processors networks are small, for two cores.
OF_IPDPS22 = OptimConfig(learning_rate=1e-3, beta2=0.999, weight_decay=0.01)
TEXT = Recipe("2x2x2x2", "gpt2-125m", 16, 14_000, "bf16", OptimConfig(3e-4), micro_batch=1)
STAGES = Recipe("1x1x1x6p2", "gpt2-125m", 24, 20_000, "fp16", OF_IPDPS22, micro_batch=1)
IMAGES = Recipe("2x2x2x2", "unet-50m", 128, 12_000, "bf16", OptimConfig(1e-4), micro_batch=16)
if not ON_GPUS:
    TEXT = Recipe("1x1x2x1", "gpt-test", 16, 14_000, "fp32", OptimConfig(3e-3))
    STAGES = Recipe("1x1x1x1p2", "gpt-test", 16, 20_000, "fp32", replace(OF_IPDPS22, learning_rate=3e-3), micro_batch=4)
    IMAGES = Recipe("1x1x2x1", "unet-test", 4, 12_000, "fp32", OptimConfig(5e-4), limit="8h")


class LongCurve(OfItsData, OneCurve):
    """Long training on the user's data, of a recipe but for what -S gives."""

    time_limit: str | None
    recipe: Recipe
    curve: str
    """name, by which a report sets both beside each other"""
    data_alone = False
    """whether each device has a whole network, as in the reference"""
    iterations = 0

    @run_after("init")
    def take_the_recipe(self) -> None:
        recipe = self.recipe
        self.model, self.sequences = self.model or recipe.model, recipe.sequences
        self.precision = self.precision or recipe.precision
        self.iterations = self.iterations or recipe.iterations
        rise = min(LR_WARMUP, self.iterations // 10)
        self.optim = replace(recipe.optim, warmup_steps=rise, decay_steps=self.iterations)
        if self.micro_batch is None and not self.data_alone:
            self.micro_batch = recipe.micro_batch
        self.time_limit = self.time_limit or recipe.limit
        if self.grid == AUTO:
            grid = Grid.parse(recipe.grid)
            self.grid = str(Grid.replicated(grid.size) if self.data_alone else grid)
        self.num_tasks = Grid.parse(self.grid).size
        self.variant = f"long-{self.curve}-data" if self.data_alone else f"long-{self.curve}"

    def cannot_run(self) -> str | None:
        """Ask for the data, of which there are none by default."""
        if self.data == SYNTHETIC:
            kind = {"text": "prepare", "images": "prepare-images"}[self.reads]
            return f"it takes the user's own {self.reads}: give -S data=DIR, which par4d data {kind} makes"
        reason: str | None = super().cannot_run()
        return reason


class OnDataAlone(LongCurve):
    """The reference."""

    descr = "long loss curve of data parallelism"
    data_alone = True


class TextOnData(OnDataAlone):
    """The reference of the GPT."""

    curve, recipe, reads = "text", TEXT, "text"


class StagesOnData(OnDataAlone):
    """The reference of the GPT in stages."""

    curve, recipe, reads = "stages", STAGES, "text"


class ImagesOnData(OnDataAlone):
    """The reference of the U-Net."""

    curve, recipe, reads = "images", IMAGES, "images"


class LongTest(BesideData, LongCurve):
    """The curve that is compared."""

    descr = "long loss curve against data parallelism"
    tags = {"long"}


@rfm.simple_test
class LongText(LongTest):
    """The GPT for as long as par4d's (Fig. 8)."""

    curve, recipe, reads = "text", TEXT, "text"
    data_parallel = fixture(TextOnData, scope="partition")


@rfm.simple_test
class LongStages(LongTest):
    """The GPT in stages for as long as axonn-ipdps22's (Fig. 10)."""

    curve, recipe, reads = "stages", STAGES, "text"
    data_parallel = fixture(StagesOnData, scope="partition")


@rfm.simple_test
class LongImages(LongTest):
    """The U-Net for as long as par4d's (Fig. 8)."""

    curve, recipe, reads = "images", IMAGES, "images"
    data_parallel = fixture(ImagesOnData, scope="partition")
