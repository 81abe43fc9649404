"""What is trained on is prepared by a job, once for all tests that read it."""

import shlex
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function

from engine.models.catalogue import lookup
from suites.base.allocation import Allocation
from suites.base.launch import Launched
from suites.base.point_training import SYSTEM

SOURCE = "/par4d-source"


class Prepared(Launched, Allocation, rfm.RunOnlyRegressionTest):
    """A fixture that runs `engine data ...` in a job; beside ReFrame where a job would take GPUs.

    into: the name of its folder. made: what the command says that it has made, such as tokens. source: the folder of
    this machine that it is made of, if any, which in a container has another place: it may be a Python's own.
    """

    num_tasks = 1
    local = SYSTEM.device.kind == "cuda"
    time_limit = None if local else "1m"
    into = made = source = ""

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
    """A test that trains on data of one kind, reads. Where -S names a network of other data, it is left out."""

    model: str
    reads: str

    @run_before("setup")
    def leave_out_a_network_of_other_data(self) -> None:
        kind = lookup(self.model).task.data.kind
        if kind != self.reads:
            self.skip(f"{self.model} is trained on {kind}, and this test on {self.reads}")
