"""The images are tiles of a photograph that every machine has, as an installed package ships it."""

import shlex
import sys
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable

from suites.base.allocation import Allocation
from suites.base.point_training import SYSTEM

FOLDER = "images"
TILES = Path(__file__).parents[2] / "ci" / "demo_images"


class Images(Allocation, rfm.RunOnlyRegressionTest):
    """A fixture that cuts tiles and runs `engine data prepare-images` in a job; beside ReFrame where a job would take a
    node of GPUs.

    side: pixels along the side of an image.
    """

    side = variable(int, value=32)
    python = variable(str, value=sys.executable)
    num_tasks = 1
    local = SYSTEM.device.kind == "cuda"
    time_limit = "1m"

    @property
    def folder(self) -> str:
        return str(Path(self.stagedir, FOLDER))

    @run_before("run")
    def write_command(self) -> None:
        self.executable = shlex.quote(self.python)
        self.prerun_cmds = [f"{self.executable} {shlex.quote(str(TILES))} photographs"]
        self.executable_opts = ["-m", "engine", "data", "prepare-images", "--unlabelled", "--source", "photographs"]
        self.executable_opts += ["--size", str(self.side), "--out", FOLDER]

    @sanity_function
    def images_were_written(self) -> bool:
        return bool(sn.assert_found(rf"^{FOLDER}: \S+ images", self.stdout, msg=f"no images; see {self.stderr}"))
