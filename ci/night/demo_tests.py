"""What the demo runs every night: a link alone, a training on two nodes and one on two cores, as short as can be."""

import os

import reframe as rfm
from reframe.core.builtins import run_after, run_before

from suites import bandwidth
from suites.training import Training


@rfm.simple_test
class Bandwidth(bandwidth.Bandwidth):
    """A ring of two nodes, a rank each."""

    ranks_per_node, keep = 1, False
    message_bytes, time_budget_s = 2_000_000, 1.0

    @run_after("init")
    def take_whole_nodes(self) -> None:
        self.num_tasks = 2


class Steps(Training):
    """A training whose steps take a tenth of a second. No peak is measured: that takes longer than all of it."""

    study = "nightly_demo"
    model, precision = "gpt-local-1", "fp32"
    checkpoint_activations = False
    iterations = 10

    def peak_options(self, precision: str) -> list[str]:
        return []


@rfm.simple_test
class TwoNodes(Steps):
    """A rank on each of two nodes."""

    descr = "a training on two nodes"
    num_tasks, ranks_per_node, grid, sequences = 2, 1, "1x1x1x2", 2


@rfm.simple_test
class OneNode(Steps):
    """One rank of two threads, on the processors of all nodes."""

    descr = "a training on one node"
    num_tasks, grid, sequences = 1, "1x1x1x1", 4
    env_vars = {"OMP_NUM_THREADS": "2"}

    @run_before("run", always_last=True)
    def take_every_processor(self) -> None:
        processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self.executable_opts = ["--cpu-list", processors, self.executable, *self.executable_opts]
        self.executable = "taskset"
