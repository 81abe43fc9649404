"""The images are tiles of a photograph that every machine has, as an installed package ships it.

They overlap, so that a network that was trained on them makes parts of one picture.
"""

import shlex
from pathlib import Path

from reframe.core.builtins import fixture, run_before, variable

from suites.base.prepared import OfItsData, Prepared
from suites.base.training import SYNTHETIC

TILES = Path(__file__).parents[2] / "ci" / "demo_images"
PHOTOGRAPHS = "photographs"


class Images(Prepared):
    """side: pixels along the side of an image."""

    side = variable(int, value=32)
    into = made = "images"

    def options(self) -> list[str]:
        return ["prepare-images", "--unlabelled", "--source", PHOTOGRAPHS, "--size", str(self.side)]

    @run_before("run")
    def cut_tiles(self) -> None:
        self.prerun_cmds = [f"{shlex.quote(self.python)} {shlex.quote(str(TILES))} {PHOTOGRAPHS}"]


class OnImages(OfItsData):
    """A Training on these images, or on those that -S data names."""

    data: str
    images = fixture(Images, scope="session")
    reads = "images"

    def corpus(self) -> str:
        return self.images.folder if self.data == SYNTHETIC else self.data
