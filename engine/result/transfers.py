"""`bench p2p` measured how long back ends take to carry a message between two ranks, and a sum among several.

Times have the meaning of the OSU micro-benchmarks, so that they compare with those (axonn-ipdps22, Fig. 3 and 4).
"""

from typing import Literal

from engine.result.sampled import Sampled

Backend = Literal["gloo", "memory", "nccl", "mpi"]
"""memory: shared by the ranks of a host, in results of before."""
Operation = Literal["message", "all_reduce"]


class Transfer(Sampled):
    """It is what one back end takes for one size, on the slowest rank.

    A message's time is one way, half of that there and back (osu_latency). An all-reduce's is that of a call which the
    ranks begin together, of num_bytes on each (osu_allreduce). average_s: the median of the mean over the ranks that
    take part, which osu_allreduce prints. nodes: over which these ranks are; 1 is within a node.
    """

    operation: Operation
    backend: Backend
    nodes: int
    ranks: int
    num_bytes: int
    average_s: float
