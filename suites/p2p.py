"""Time of a message and of an all-reduce, by back end and size: Fig. 3 and 4 of axonn-ipdps22.

    reframe -c suites/p2p.py --system perlmutter
    reframe -c suites/p2p.py --system vcluster -S backends=gloo,mpi -r

One job measures within a node and, where there are two, between them, the back ends in turns. MPI takes mpi4py, and a
launcher of MPI's own.
"""

import reframe as rfm
from reframe.core.builtins import variable

from suites.base.engine_test import WholeNodes, command
from suites.base.figures import Figures


@rfm.simple_test
class Transfers(WholeNodes):
    """`engine bench p2p` on all devices of some nodes.

    backends, sizes: as the command has them; "" takes its defaults.
    """

    descr = "messages and all-reduces by back end"
    study = "peak"
    tags = {"p2p"}
    usual_nodes, most_ranks_here = 2, 4
    backends = variable(str, value="")
    sizes = variable(str, value="")
    time_budget_s = variable(float, value=120.0)
    time_limit = "5m"

    def options(self) -> list[str]:
        words = command("bench p2p", device=self.device, time_budget=self.time_budget_s)
        return words + command("", backend=self.backends, sizes=self.sizes)

    def figures(self) -> Figures:
        return {
            f"{one['operation']}_{one['backend']}_{one['nodes']}_nodes_{one['num_bytes']}": (one["average_s"], "s")
            for one in self.record["transfers"]
        }
