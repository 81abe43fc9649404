"""The corpus is real text that every machine has: the standard library of the running Python."""

import shlex
import sys
import sysconfig
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable

from suites.base.allocation import Allocation
from suites.base.point_training import SYSTEM

FOLDER = "corpus"


class Corpus(Allocation, rfm.RunOnlyRegressionTest):
    """A fixture that runs `engine data prepare` in a job; beside ReFrame where a job would take a node of GPUs.

    vocabulary: how many tokens there are, at most as many as the model knows. most_bytes: how much text is read.
    """

    vocabulary = variable(int, value=2048)
    most_bytes = variable(int, value=8_000_000)
    python = variable(str, value=sys.executable)
    num_tasks = 1
    local = SYSTEM.device.kind == "cuda"
    time_limit = "1m"

    @property
    def folder(self) -> str:
        return str(Path(self.stagedir, FOLDER))

    @run_before("run")
    def write_command(self) -> None:
        source = sysconfig.get_path("stdlib")
        self.executable = shlex.quote(self.python)
        self.executable_opts = ["-m", "engine", "data", "prepare", "--source", shlex.quote(source), "--out", FOLDER]
        self.executable_opts += ["--vocab-size", str(self.vocabulary), "--max-bytes", str(self.most_bytes)]

    @sanity_function
    def corpus_was_written(self) -> bool:
        return bool(sn.assert_found(rf"^{FOLDER}: \S+ tokens", self.stdout, msg=f"no corpus; see {self.stderr}"))
