"""What does a message take, and an all-reduce, by back end and size? Fig. 3 and 4 of axonn-ipdps22.

    reframe -c suites/p2p.py --system perlmutter
    reframe -c suites/p2p.py --system vcluster -S backends=gloo,memory,mpi -r

One job measures within a node and between two, the back ends in turns. MPI takes mpi4py, and a launcher of MPI's own.
"""

import os

import reframe as rfm
from reframe.core.builtins import run_after, variable

from suites.base.engine_test import EngineTest
from suites.base.figures import Figures
from suites.base.point_training import FEWEST_CORES, ON_THIS_MACHINE


@rfm.simple_test
class Transfers(EngineTest):
    """`engine bench p2p` on all devices of some nodes.

    backends, sizes: as the command has them; "" takes its defaults.
    """

    descr = "messages and all-reduces by back end"
    study = "peak"
    tags = {"p2p"}
    nodes = 1 if ON_THIS_MACHINE else 2
    backends = variable(str, value="")
    sizes = variable(str, value="")
    time_budget_s = variable(float, value=120.0)
    time_limit = "5m"

    @run_after("init")
    def take_whole_nodes(self) -> None:
        devices = self.system.node.devices
        self.num_tasks = self.nodes * (devices.value if devices else min(4, max(FEWEST_CORES, os.cpu_count() or 1)))

    def options(self) -> list[str]:
        words = ["bench", "p2p", "--device", self.device, "--time-budget", f"{self.time_budget_s:g}"]
        words += ["--backend", self.backends] if self.backends else []
        return [*words, "--sizes", self.sizes] if self.sizes else words

    def figures(self) -> Figures:
        return {
            f"{one['operation']}_{one['backend']}_{one['nodes']}_nodes_{one['num_bytes']}": (one["average_s"], "s")
            for one in self.record["transfers"]
        }
