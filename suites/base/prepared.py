"""Data that is trained on, which a job prepares once for all tests that read it: texts, and tiles of a photograph."""

import shlex
import sysconfig
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import fixture, run_before, sanity_function, variable

from engine.models.catalogue import lookup
from suites.base.allocation import Allocation
from suites.base.engine_test import command
from suites.base.launch import Launched
from suites.base.training import SYNTHETIC, SYSTEM

SOURCE = "/par4d-source"


class Prepared(Launched, Allocation, rfm.RunOnlyRegressionTest):
    """Fixture that runs `engine data ...` in a job; beside ReFrame where a job would take GPUs."""

    num_tasks = 1
    local = SYSTEM.device.kind == "cuda"
    time_limit = None if local else "1m"
    into = ""
    """name of its folder"""
    made = ""
    """what the command says that it has made, such as tokens"""
    source = ""
    """folder of this machine that it is made of, which in a container has another place: it may be a Python's own"""

    def options(self) -> list[str]:
        """Return the words of the command behind `data`, without --out."""
        raise NotImplementedError

    @property
    def folder(self) -> str:
        return str(Path(self.stagedir, self.into))

    @run_before("run")
    def write_command(self) -> None:
        words, elsewhere = self.options(), dict[str, str]()
        if self.container and self.source in words:
            words[words.index(self.source)], elsewhere = SOURCE, {self.source: SOURCE}
        self.write_launcher()
        self.executable = self.in_container([], elsewhere)
        self.executable_opts = ["-m", "engine", "data", *map(shlex.quote, words), "--out", self.into]

    @sanity_function
    def it_was_written(self) -> bool:
        what = rf"^{self.into}: \S+ {self.made}"
        return bool(sn.assert_found(what, self.stdout, msg=f"no {self.made}; see {self.stderr}"))


class OfItsData(rfm.RegressionTestPlugin):
    """Test that trains on data of one kind, reads. Where -S names a network of other data, it is left out."""

    model: str
    reads: str

    @run_before("setup")
    def leave_out_a_network_of_other_data(self) -> None:
        kind = lookup(self.model).task.data.kind
        if kind != self.reads:
            self.skip(f"{self.model} is trained on {kind}, and this test on {self.reads}")


class Corpus(Prepared):
    """vocabulary: how many tokens there are, at most as many as the model knows. most_bytes: how much text is read."""

    vocabulary = variable(int, value=2048)
    most_bytes = variable(int, value=8_000_000)
    into, made, source = "corpus", "tokens", sysconfig.get_path("stdlib")

    def options(self) -> list[str]:
        return command("prepare", source=self.source, vocab_size=self.vocabulary, max_bytes=self.most_bytes)


TILES = Path(__file__).parents[2] / "ci" / "demo_images"
PHOTOGRAPHS = "photographs"


class Images(Prepared):
    """side: pixels along the side of an image."""

    side = variable(int, value=32)
    into = made = "images"

    def options(self) -> list[str]:
        return command("prepare-images", unlabelled=True, source=PHOTOGRAPHS, size=self.side)

    @run_before("run")
    def cut_tiles(self) -> None:
        self.prerun_cmds = [f"{shlex.quote(self.python)} {shlex.quote(str(TILES))} {PHOTOGRAPHS}"]


WRITE_DIGITS = TILES.with_name("digits")
DIGITS = "digits"


class Digits(Prepared):
    """part: train or test."""

    part = variable(str, value="train")
    into = made = "images"

    def options(self) -> list[str]:
        return command("prepare-images", source=f"{DIGITS}/{self.part}", size=8)

    @run_before("run")
    def write_digits(self) -> None:
        self.prerun_cmds = [f"{shlex.quote(self.python)} {shlex.quote(str(WRITE_DIGITS))} {DIGITS}"]


class OnImages(OfItsData):
    """A Training on these images, or on those that -S data names."""

    data: str
    images = fixture(Images, scope="session")
    reads = "images"

    def corpus(self) -> str:
        return self.images.folder if self.data == SYNTHETIC else self.data
