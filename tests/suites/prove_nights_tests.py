"""prove_nights.py runs these short tests every night: a link alone, a node's products, a training on two nodes.

Nights of seconds on a shared machine want figures that others' work moves little: the median of many products, and a
collective that takes what the link takes.
"""

import os

import reframe as rfm
from reframe.core.builtins import parameter, run_before

from suites import bandwidth, peak
from suites.base.figures import Figures
from suites.base.training import TrainingTest


@rfm.simple_test
class Bandwidth(bandwidth.Bandwidth):
    """Two nodes make a ring, with a rank each."""

    ranks_per_node, keep = 1, False
    message_bytes, time_budget_s = 8_000_000, 1.0

    def fit_partition(self) -> None:
        self.num_tasks = 2

    def figures(self) -> Figures:
        """Return the bandwidth of the collective that sends both ways all the time."""
        (ring,) = self.links.alone
        return {"all_reduce": (next(one.bytes_per_s for one in ring.times if one.kind == "all_reduce"), "B/s")}


@rfm.simple_test
class Peak(peak.Peak):
    """One rank has two threads on the processors of all nodes. They wait asleep, for other work may hold one."""

    ranks = parameter([1])
    dtype = parameter(["fp32"])
    sizes, time_budget_s = "1024", 2.0
    env_vars = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}

    @run_before("run", always_last=True)
    def take_every_processor(self) -> None:
        processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        self.executable_opts = ["--cpu-list", processors, self.executable, *self.executable_opts]
        self.executable = "taskset"


@rfm.simple_test
class TwoNodes(TrainingTest):
    """Each of two nodes has a rank, and a step takes a fifth of a second."""

    descr = "a training on two nodes"
    study = "prove_nights"
    model, precision = "gpt-local-1", "fp32"
    checkpoint_activations = False
    iterations = 7
    num_tasks, ranks_per_node, grid, sequences = 2, 1, "1x1x1x2", 4

    def peak_options(self, precision: str) -> list[str]:
        """No peaks, as measuring one takes longer than the training."""
        return []
