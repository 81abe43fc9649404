"""A U-Net is trained for as long as its images take to look like something, and makes some on the way.

    reframe -c suites/samples.py --system local -r          2,000 steps: half an hour of two cores
    reframe -c suites/samples.py --system perlmutter -S data=/path/to/cifar    what prepare-images has made
    reframe -c suites/samples.py --system perlmutter -S model=unet-250m        another network that fits one device

One device does. The images are tiles of one photograph unless others are given.
"""

from pathlib import Path
from typing import NamedTuple

import reframe as rfm
from reframe.core.builtins import fixture, parameter, variable

from suites.base.engine_test import EngineTest
from suites.base.prepared import OnImages
from suites.base.training import SYSTEM, TrainingTest


class Recipe(NamedTuple):
    """Training of a U-Net. micro_batch: images at once."""

    model: str
    sequences: int
    micro_batch: int
    learning_rate: float


# That of the project's README on processors, and the 50M network of par4d Fig. 8 on GPUs.
RECIPE = {"cpu": Recipe("unet-test", 4, 4, 5e-4), "cuda": Recipe("unet-50m", 128, 16, 1e-4)}[SYSTEM.device.kind]
EVERY, SHOWN = 500, (500, 1000, 1500, 2000)
"""So often is kept what is trained; images are made of all that is."""
SAVED = "saved"


class TrainedUNet(OnImages, TrainingTest):
    """The training, whose learning rate has fallen to nothing at its end. save_every: steps between two checkpoints."""

    descr = "training of a network that makes images"
    study = "samples"
    num_tasks = 1
    grid = "1x1x1x1"
    model, sequences, micro_batch, learning_rate = RECIPE
    iterations = SHOWN[-1]
    save_every = variable(int, value=EVERY)
    precision = "fp32"
    checkpoint_activations = False
    time_limit = "60m"

    def options(self) -> list[str]:
        decay = ["--lr-decay-steps", str(self.iterations)]
        return [*super().options(), *decay, "--save", SAVED, "--save-every", str(self.save_every)]


@rfm.simple_test
class UNetSamples(EngineTest):
    """Images that the U-Net makes after so many steps."""

    descr = "images of a U-Net, step by step of its training"
    study = "samples"
    tags = {"samples"}
    num_tasks = 1
    time_limit = "10m"
    out = "result.png"
    step = parameter(SHOWN, type=int, loggable=True)
    trained = fixture(TrainedUNet, scope="partition")

    def options(self) -> list[str]:
        saved = Path(self.trained.stagedir, SAVED, f"step-{self.step}")
        return ["sample", "--resume", str(saved), "--device", self.device]
