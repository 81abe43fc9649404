"""Validation trains a small GPT on real text, and a small U-Net on images, serially and on a 4D grid (par4d VII-A and
Fig. 8): 2x2x2x2 on GPUs, and on processors 2x1x2x2, whose eight ranks two cores can share. The GPT is trained in stages
too (axonn-ipdps22 VII-A and Fig. 10): 2 of 6 GPUs each, and on processors of 2 ranks each.

    reframe -c suites/validation.py --system local -n '^Validation' -S Validation.grid=2x2x2x2    16 ranks here, too
    reframe -c suites/validation.py --system perlmutter -n UNet -S data=/path/to/cifar    what prepare-images has made
    reframe -c suites/validation.py --system perlmutter -S model=unet-250m    another network that fits one device

Both runs start from the same weights and see the same samples, so their loss curves must be the same but for rounding.
The U-Net's first losses and its gradients are held to those of PyTorch's DDP, too, and the GPT's to those of
Megatron-core's data parallelism, from weights none of which begins as 0. Curves as long as the papers' are in
long_validation.py.
"""

from typing import NamedTuple

import reframe as rfm
from reframe.core.builtins import fixture, run_after, run_before, variable

from engine.grid import Grid
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS, environment_lack
from engine.training_record import PrecisionName
from suites.base.contests import PeerComparison
from suites.base.curves import BesideSerial, OneCurve
from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures
from suites.base.prepared import Corpus, OfItsData, OnImages
from suites.base.running import NIGHTLY, Worth
from suites.base.training import SYSTEM


class Recipe(NamedTuple):
    """Training whose curves are compared, its ranks and time limits."""

    model: str
    vocabulary: int
    """of texts"""
    sequences: int
    precision: PrecisionName
    learning_rate: float
    serial_limit: str
    limit: str
    """time limit of the training on all ranks"""
    micro_batch: int | None = None
    """sequences at once, so that a larger network of -S fits one device too"""
    iterations: int = 100


ON_GPUS = SYSTEM.device.kind == "cuda"
# On processors a network small enough for two cores, in fp64, where the curves agree to 6e-15. On GPUs the
# 125M network of par4d VII-A, in fp32: rounding differs from the first step on, and grows.
SMALL_GPT = Recipe("gpt-test", 512, 16, "fp64", 3e-3, serial_limit="1m", limit="4m")
GPT_125M = Recipe("gpt2-125m", 16384, 16, "fp32", 3e-4, serial_limit="5m", limit="3m", micro_batch=1)
RECIPE = GPT_125M if ON_GPUS else SMALL_GPT
# The 50M network of par4d Fig. 8 on GPUs, for as many steps as show that the curves are one.
SMALL_UNET = Recipe("unet-test", 0, 4, "fp64", 5e-4, serial_limit="2m", limit="6m", iterations=16)
UNET_50M = Recipe("unet-50m", 0, 128, "fp32", 1e-4, serial_limit="6m", limit="4m", micro_batch=16)
UNET = UNET_50M if ON_GPUS else SMALL_UNET
GRID = "2x2x2x2" if ON_GPUS else "2x1x2x2"
# GPT-2 small on 12 GPUs, whose six ranks of each stage divide the batch; each takes four micro-batches a step.
GPT_OF_STAGES = GPT_125M._replace(sequences=24, serial_limit="7m", limit="4m")
STAGED = GPT_OF_STAGES if ON_GPUS else SMALL_GPT._replace(micro_batch=2)
GRID_OF_STAGES = "1x1x1x6p2" if ON_GPUS else "1x1x1x2p2"


class Text(Corpus):
    """The corpus with as many tokens as the network of the recipe knows."""

    vocabulary = RECIPE.vocabulary


class LossCurve(OfItsData, OneCurve):
    """Training of the GPT."""

    text = fixture(Text, scope="session")
    reads = "text"
    iterations = RECIPE.iterations
    model, sequences, precision = RECIPE.model, RECIPE.sequences, RECIPE.precision
    learning_rate, micro_batch = RECIPE.learning_rate, RECIPE.micro_batch

    def corpus(self) -> str:
        return str(self.text.folder)


class UNetCurve(OnImages, OneCurve):
    """Training of the U-Net."""

    iterations = UNET.iterations
    model, sequences, precision = UNET.model, UNET.sequences, UNET.precision
    learning_rate, micro_batch = UNET.learning_rate, UNET.micro_batch


class SerialCurve(LossCurve):
    """The reference has one rank, on which the engine is the serial model."""

    descr = "loss curve of serial training"
    num_tasks = 1
    grid = "1x1x1x1"
    variant = "serial"
    time_limit = RECIPE.serial_limit


class SerialCurveOfStages(SerialCurve):
    """The reference of the GPT in stages, of its batch."""

    sequences, time_limit = STAGED.sequences, STAGED.serial_limit


class SerialUNetCurve(UNetCurve):
    """The reference of the U-Net."""

    descr = "loss curve of serial training"
    num_tasks = 1
    grid = "1x1x1x1"
    variant = "serial"
    time_limit = UNET.serial_limit


@rfm.simple_test
class Validation(BesideSerial, LossCurve):
    """The GPT's two curves."""

    descr = "loss curve of 4D training against serial training"
    worth = Worth.CORRECTNESS
    grid = GRID
    variant = "4d"
    tags = {"validation", NIGHTLY}
    time_limit = RECIPE.limit
    serial = fixture(SerialCurve, scope="partition")


@rfm.simple_test
class PipelineValidation(BesideSerial, LossCurve):
    """The GPT's two curves, one of a pipeline (axonn-ipdps22 Fig. 10)."""

    descr = "loss curve of training in stages against serial training"
    worth = Worth.CORRECTNESS
    grid = GRID_OF_STAGES
    variant = "pipeline"
    tags = {"validation"}
    sequences, micro_batch, time_limit = STAGED.sequences, STAGED.micro_batch, STAGED.limit
    serial = fixture(SerialCurveOfStages, scope="partition")


@rfm.simple_test
class UNetValidation(BesideSerial, UNetCurve):
    """The U-Net's two curves."""

    descr = "loss curve of 4D training against serial training"
    worth = Worth.CORRECTNESS
    grid = GRID
    variant = "4d"
    tags = {"validation"}
    time_limit = UNET.limit
    serial = fixture(SerialUNetCurve, scope="partition")


class AgainstPeer(OfItsData, PeerComparison, EngineTest):
    """Training on all ranks beside a peer: the engine says whether losses and gradients are the same.

    A peer whose environment isn't there is skipped.
    """

    study = "validation"
    worth = Worth.CORRECTNESS
    tags = {"validation"}
    model = variable(str, value="", loggable=True)
    num_tasks = Grid.parse(GRID).size
    oversubscribe = True
    time_limit: str | None
    peer: str
    layout: str
    recipe: Recipe

    @run_after("init")
    def take_the_recipe(self) -> None:
        self.model, self.time_limit = self.model or self.recipe.model, self.time_limit or self.recipe.limit
        self.precision = self.recipe.precision

    @run_before("setup")
    def leave_out_what_is_not_installed(self) -> None:
        library = COMPARISONS[self.peer].library
        if not self.is_dry_run() and (reason := environment_lack(library)):
            self.skip(reason)

    def options(self) -> list[str]:
        batch = max(self.recipe.sequences, self.num_tasks)
        words = command("bench peers", peer=self.peer, layout=self.layout, grid=GRID, model=self.model)
        words += command("", batch_size=batch, precision=self.precision, device=self.device)
        return [*words, *self.device_memory_options, *command("", rounds=2, steps_per_round=1)]

    def figures(self) -> Figures:
        """Return how alike both sides are: so few steps say nothing of their speed."""
        found = [contest["equality"] for contest in self.record["comparisons"]]
        return {name: (one[name], "1") for one in found for name in ("losses", "gradient_norms")}


@rfm.simple_test
class UNetAgainstDDP(AgainstPeer):
    """The U-Net beside PyTorch's DDP (par4d Fig. 8)."""

    descr = "losses of 4D training against PyTorch's DDP"
    reads = "images"
    peer, recipe = "ddp", UNET
    layout = str(Grid.replicated(Grid.parse(GRID).size))


@rfm.simple_test
class GPTAgainstMegatron(AgainstPeer):
    """The GPT beside Megatron-core's data parallelism (par4d Fig. 8)."""

    descr = "losses of 4D training against Megatron-core's data parallelism"
    reads = "text"
    peer, recipe = "megatron-core", RECIPE._replace(precision="fp32")
    layout = str(Layout(data=Grid.parse(GRID).size))
